-- A store as Toolwire 0.1 wrote it. Never change this file: it must open in every later version.
BEGIN TRANSACTION;
CREATE TABLE approvals (
            id TEXT NOT NULL PRIMARY KEY,
            created_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            owner TEXT NOT NULL,
            session TEXT NOT NULL,
            surface TEXT NOT NULL,
            model TEXT NOT NULL,
            tool TEXT NOT NULL,
            stage TEXT NOT NULL,
            arguments TEXT NOT NULL,
            shown TEXT NOT NULL,
            token TEXT NOT NULL,
            status TEXT NOT NULL,
            decided_at REAL,
            decided_by TEXT,
            decision TEXT
        , vault TEXT NOT NULL DEFAULT '', asker TEXT NOT NULL DEFAULT '') WITHOUT ROWID
        ;
INSERT INTO "approvals" VALUES('appr_1',1.5,10.25,'','s','chat','demo','file_read','run','{"path": "A.md"}','{"touched": [{"key": "a", "path": "A.md", "size": 11, "snippet": "text", "missing": false, "reason": ""}], "diff": "", "summary": "reads A.md", "pick": true, "problem": ""}','token','approved',3.0,'chat','{"approved": true, "reason": "", "arguments": null, "picked": null, "remember": "tool", "folder": "", "seen": "", "within": [], "standing": false}','','');
INSERT INTO "approvals" VALUES('appr_2',2.5,10.25,'','s','chat','demo','file_read','run','{}','{"touched": [], "diff": "", "summary": "", "pick": false}','token','denied',3.0,'chat','{"approved": false}','','');
CREATE TABLE audit (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            at REAL NOT NULL,
            owner TEXT NOT NULL,
            event TEXT NOT NULL,
            approval_id TEXT NOT NULL,
            session TEXT NOT NULL,
            surface TEXT NOT NULL,
            model TEXT NOT NULL,
            tool TEXT NOT NULL,
            arguments_sha256 TEXT NOT NULL,
            result_sha256 TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            note TEXT NOT NULL
        );
INSERT INTO "audit" VALUES(1,3.0,'','approved','appr_1','s','chat','demo','file_read','sha','',3,'note');
CREATE TABLE conversations (
            id TEXT NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            title TEXT NOT NULL,
            model TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            entries TEXT NOT NULL,
            messages TEXT NOT NULL,
            words TEXT NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "conversations" VALUES('c1','','Tea','demo',1.0,2.0,'[{"kind": "user", "text": "Tea"}]','[{"role": "user", "content": "Tea"}]','tea
tea');
CREATE TABLE grants (
            id TEXT NOT NULL PRIMARY KEY,
            created_at REAL NOT NULL,
            owner TEXT NOT NULL,
            scope TEXT NOT NULL,
            tool TEXT NOT NULL,
            stage TEXT NOT NULL,
            target TEXT NOT NULL,
            approval_id TEXT NOT NULL,
            revoked_at REAL
        , vault TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '') WITHOUT ROWID
        ;
INSERT INTO "grants" VALUES('grant_1',1.0,'','tool','file_read','run','','appr_1',NULL,'/vault','demo');
CREATE TABLE items (
            key_id TEXT NOT NULL,
            id TEXT NOT NULL,
            response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
            PRIMARY KEY (key_id, id)
        ) WITHOUT ROWID
        ;
INSERT INTO "items" VALUES('key_1','msg_1','resp_1');
INSERT INTO "items" VALUES('key_1','msg_2','resp_1');
CREATE TABLE keys (
            id TEXT NOT NULL PRIMARY KEY,
            name TEXT NOT NULL,
            sha256 TEXT NOT NULL UNIQUE,
            prefix TEXT NOT NULL,
            scopes TEXT NOT NULL,
            limits TEXT NOT NULL,
            created_at REAL NOT NULL,
            revoked_at REAL,
            rotated_from TEXT NOT NULL DEFAULT '',
            last_used_at REAL
        ) WITHOUT ROWID
        ;
INSERT INTO "keys" VALUES('key_1','laptop','abc','tw_abc','[]','{}',1.0,NULL,'',NULL);
CREATE TABLE preferences (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "preferences" VALUES('theme','"dark"');
CREATE TABLE responses (
            id TEXT NOT NULL PRIMARY KEY,
            key_id TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            model TEXT NOT NULL,
            status TEXT NOT NULL,
            previous_response_id TEXT,
            response BLOB NOT NULL,
            input_items BLOB NOT NULL,
            turn_items BLOB NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "responses" VALUES('resp_1','key_1',1800000000,'demo','completed',NULL,X'7B226964223A22726573705F31222C226F7574707574223A5B7B226964223A226D73675F32227D5D7D',X'5B7B226964223A226D73675F31227D5D',X'5B7B2274223A226D657373616765222C22726F6C65223A2275736572222C227061727473223A5B7B2274223A2274657874222C2274657874223A2248656C6C6F227D5D7D5D');
CREATE TABLE usage (
            key_id TEXT NOT NULL,
            hour INTEGER NOT NULL,
            model TEXT NOT NULL,
            requests INTEGER NOT NULL,
            failed INTEGER NOT NULL,
            input_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL,
            tool_calls INTEGER NOT NULL,
            PRIMARY KEY (key_id, hour, model)
        ) WITHOUT ROWID
        ;
INSERT INTO "usage" VALUES('key_1',500000,'demo',1,0,9,0,3,1);
CREATE TABLE usage_batches (node TEXT NOT NULL PRIMARY KEY, batch INTEGER NOT NULL, written_at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "usage_batches" VALUES('node_1',1,2.0);
CREATE TABLE web_sessions (
            token_sha256 TEXT NOT NULL PRIMARY KEY,
            started_by TEXT NOT NULL,
            created_at REAL NOT NULL,
            seen_at REAL NOT NULL,
            expires_at REAL NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "web_sessions" VALUES('abc','key',1.0,2.0,3.0);
CREATE INDEX items_by_response ON items (response_id);
CREATE INDEX approvals_by_status ON approvals (status, created_at);
CREATE INDEX conversations_by_time ON conversations (owner, updated_at);
CREATE INDEX responses_by_previous ON responses (previous_response_id, created_at);
CREATE INDEX usage_by_hour ON usage (hour);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',1);
COMMIT;
PRAGMA user_version = 8;
