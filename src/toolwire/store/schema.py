"""The store's tables, and the migrations from older versions.

The SQL is written for SQLite; `postgres.definition` translates it. A store records its version: SQLite in
`PRAGMA user_version`, PostgreSQL in the table `toolwire_schema`. A new, empty store has version 0.
"""

from __future__ import annotations

from toolwire.core.errors import ToolwireError

FIRST = 8
"""The version that `TABLES` creates, used by Toolwire 0.1.

Earlier versions were never released.
"""

TABLES: tuple[str, ...] = (
    """
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
    """,
    "CREATE INDEX responses_by_previous ON responses (previous_response_id, created_at)",
    """
    CREATE TABLE items (
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
        PRIMARY KEY (key_id, id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX items_by_response ON items (response_id)",
    """
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
        decision TEXT,
        vault TEXT NOT NULL DEFAULT '',
        asker TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID
    """,
    "CREATE INDEX approvals_by_status ON approvals (status, created_at)",
    """
    CREATE TABLE grants (
        id TEXT NOT NULL PRIMARY KEY,
        created_at REAL NOT NULL,
        owner TEXT NOT NULL,
        scope TEXT NOT NULL,
        tool TEXT NOT NULL,
        stage TEXT NOT NULL,
        target TEXT NOT NULL,
        approval_id TEXT NOT NULL,
        revoked_at REAL,
        vault TEXT NOT NULL DEFAULT '',
        model TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID
    """,
    """
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
    )
    """,
    """
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
    """,
    "CREATE INDEX conversations_by_time ON conversations (owner, updated_at)",
    """
    CREATE TABLE preferences (
        name TEXT NOT NULL PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE web_sessions (
        token_sha256 TEXT NOT NULL PRIMARY KEY,
        started_by TEXT NOT NULL,
        created_at REAL NOT NULL,
        seen_at REAL NOT NULL,
        expires_at REAL NOT NULL
    ) WITHOUT ROWID
    """,
    """
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
    """,
    """
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
    """,
    "CREATE INDEX usage_by_hour ON usage (hour)",
    """
    CREATE TABLE usage_batches (
        node TEXT NOT NULL PRIMARY KEY,
        batch INTEGER NOT NULL,
        written_at REAL NOT NULL
    ) WITHOUT ROWID
    """,
)
"""All tables of version `FIRST`. Do not change them: add a migration to `MIGRATIONS`."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "ALTER TABLE approvals ADD COLUMN proof TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE grants ADD COLUMN proof TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE web_sessions ADD COLUMN authority TEXT NOT NULL DEFAULT ''",
    ),
    (
        "ALTER TABLE approvals RENAME COLUMN vault TO source",
        "ALTER TABLE approvals ADD COLUMN pin TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE approvals ADD COLUMN used_at REAL",
        "UPDATE approvals SET source = 'vault:' || source WHERE source != ''",
        "ALTER TABLE grants RENAME COLUMN vault TO source",
        "ALTER TABLE grants ADD COLUMN pin TEXT NOT NULL DEFAULT ''",
        "UPDATE grants SET source = 'vault:' || source WHERE source != ''",
        "ALTER TABLE audit ADD COLUMN source TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit ADD COLUMN pin TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit ADD COLUMN decided_by TEXT NOT NULL DEFAULT ''",
        """
        CREATE TABLE mcp_pins (
            server TEXT NOT NULL,
            tool TEXT NOT NULL,
            pin TEXT NOT NULL,
            definition TEXT NOT NULL,
            agreed_at REAL NOT NULL,
            PRIMARY KEY (server, tool)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE mcp_withheld (
            server TEXT NOT NULL,
            tool TEXT NOT NULL,
            pin TEXT NOT NULL,
            why TEXT NOT NULL,
            diff TEXT NOT NULL,
            after TEXT NOT NULL,
            kept INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (server, tool)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE mcp_requests (
            id TEXT NOT NULL PRIMARY KEY,
            key_id TEXT NOT NULL,
            expires_at REAL NOT NULL,
            server TEXT NOT NULL,
            tool TEXT NOT NULL,
            pin TEXT NOT NULL,
            arguments TEXT NOT NULL,
            used_at REAL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE notice_links (
            id TEXT NOT NULL PRIMARY KEY,
            approval_id TEXT NOT NULL,
            approval_token TEXT NOT NULL,
            kind TEXT NOT NULL,
            notice TEXT NOT NULL,
            approves INTEGER NOT NULL,
            sha256 TEXT NOT NULL,
            created_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            used_at REAL,
            wrong INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        "CREATE INDEX notice_links_by_time ON notice_links (expires_at)",
    ),
)
"""Entry n migrates a store from version `FIRST + n` to the next. Only add entries."""


def newest() -> int:
    return FIRST + len(MIGRATIONS)


def missing(version: int, store: str) -> tuple[str, ...]:
    """Returns the statements that migrate a store of this version to the newest version.

    Raises an error if this Toolwire does not know the version: it is newer than `newest()` or older than
    `FIRST`.
    """
    reason = ""
    if version > newest():
        reason = f"written by a newer Toolwire (schema {version}, this one knows {newest()})"
    elif 0 < version < FIRST:
        known = f"schema {version}, this one reads {FIRST} and later"
        reason = f"written by a Toolwire before 0.1 ({known}); use an empty store"
    if reason:
        raise ToolwireError("server", f"store {store}: {reason}")
    steps = MIGRATIONS[version - FIRST :] if version else (TABLES, *MIGRATIONS)
    return tuple(statement for step in steps for statement in step)
