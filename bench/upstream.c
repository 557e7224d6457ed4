// An OpenAI-compatible server that needs very little CPU time: one thread, epoll, and answers that are rendered once at
// start. upstream.py is the Python version.
//
//   upstream PORT
//
// The model's name chooses the answer to POST /v1/chat/completions:
//   native: a tool call in `tool_calls`. written: the same call as <tool_call> text. Any other name: prose.
//   paced: one event every 10 ms. burst: all events in one write. Any other name: one write for each event, without pauses.
// A request without "stream":true gets a small body. The role and the first piece are sent at once, in one write. The
// first piece contains the mark "Zz00".
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 200, FDS = 4096, STEP_US = 10000 };

typedef struct {
  char *bytes;
  size_t size, ends[PIECES + 8];  // where each write ends
  int writes;
} Answer;

typedef struct {
  char *in;
  size_t held, room;
  const Answer *answer;  // NULL: waiting for a request
  size_t sent;
  int write, burst, blocked;
  int64_t step, due;
} Connection;

static Answer prose, native, written, body, models;
static Connection connections[FDS];
static int poller, highest;

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void add(Answer *a, const char *text, size_t size) {
  a->bytes = realloc(a->bytes, a->size + size + 1);
  memcpy(a->bytes + a->size, text, size);
  a->size += size;
}

static void add_event(Answer *a, const char *json) {
  char frame[4096], head[16];
  int size = snprintf(frame, sizeof frame, "data: %s\n\n", json);
  add(a, head, snprintf(head, sizeof head, "%x\r\n", size));
  add(a, frame, size);
  add(a, "\r\n", 2);
}

static void end_write(Answer *a) { a->ends[a->writes++] = a->size; }

static void add_chunk(Answer *a, const char *delta, const char *finish) {
  char json[2048];
  snprintf(json, sizeof json,
           "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\",\"choices\":"
           "[{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s}]}",
           delta, finish);
  add_event(a, json);
}

static void begin_stream(Answer *a) {
  const char *head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
  add(a, head, strlen(head));
}

static void end_stream(Answer *a, const char *finish) {
  add_chunk(a, "{}", finish);
  add_event(a, "[DONE]");
  add(a, "0\r\n\r\n", 5);
  end_write(a);
}

static void render_stream(Answer *a, int kind) {  // 0 prose, 1 native, 2 written
  const char *opener = "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"call_bench\",\"type\":\"function\","
                       "\"function\":{\"name\":\"get_weather\",\"arguments\":\"\"}}]}";
  char delta[512], word[160];
  begin_stream(a);
  add_chunk(a, kind == 1 ? opener : "{\"role\":\"assistant\",\"content\":\"\"}", "null");
  for (int i = 0; i < PIECES; i++) {
    if (i == 0)
      snprintf(word, sizeof word, "%s", kind == 0 ? "Zz00" : kind == 1 ? "{\\\"city\\\": \\\"Zz00" : "<tool_call>{\\\"name\\\": \\\"get_weather\\\", \\\"arguments\\\": {\\\"city\\\": \\\"Zz00");
    else if (i == PIECES - 1)
      snprintf(word, sizeof word, "%s", kind == 0 ? "end." : kind == 1 ? "\\\"}" : "\\\"}}</tool_call>");
    else
      snprintf(word, sizeof word, "%c%03d", i % 5 == 4 ? ' ' : 'a' + i % 26, i);
    snprintf(delta, sizeof delta, kind == 1 ? "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"%s\"}}]}" : "{\"content\":\"%s\"}", word);
    add_chunk(a, delta, "null");
    end_write(a);
  }
  end_stream(a, kind == 1 ? "\"tool_calls\"" : "\"stop\"");
}

static void render_body(Answer *a, const char *json) {
  char head[256];
  add(a, head, snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(json)));
  add(a, json, strlen(json));
  end_write(a);
}

static void watch(int fd, uint32_t events, int how) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  epoll_ctl(poller, how, fd, &event);
}

static void drop(int fd) {
  free(connections[fd].in);
  memset(&connections[fd], 0, sizeof(Connection));
  close(fd);
}

static int has(const char *text, size_t size, const char *what) { return memmem(text, size, what, strlen(what)) != NULL; }

static void take_request(int fd) {  // answers the next whole request, if there is one
  Connection *c = &connections[fd];
  char *end = c->answer || !c->in ? NULL : memmem(c->in, c->held, "\r\n\r\n", 4);
  if (!end) return;
  size_t head = end - c->in + 4, whole = head;
  *end = 0;
  char *length = strcasestr(c->in, "\ncontent-length:");
  int chunked = strcasestr(c->in, "\ntransfer-encoding: chunked") != NULL, get = !strncmp(c->in, "GET", 3);
  if (length) whole += strtoul(length + 16, NULL, 10);
  *end = '\r';
  if (chunked) {
    char *last = memmem(c->in + head, c->held - head, "0\r\n\r\n", 5);
    if (!last) return;
    whole = last - c->in + 5;
  }
  if (c->held < whole) return;
  const char *json = c->in + head;
  size_t size = whole - head;
  const char *model = memmem(json, size, "bench-", 6);
  size_t span = model ? strcspn(model, "\"") : 0;
  int stream = has(json, size, "\"stream\":true") || has(json, size, "\"stream\": true");
  c->answer = get ? &models : !stream ? &body : has(model, span, "native") ? &native : has(model, span, "written") ? &written : &prose;
  c->burst = has(model, span, "burst");
  c->step = stream && has(model, span, "paced") ? STEP_US : 0;
  c->due = now_us();
  c->sent = c->write = 0;
  memmove(c->in, c->in + whole, c->held - whole);
  c->held -= whole;
}

static void send_more(int fd, int64_t now) {
  Connection *c = &connections[fd];
  while (c->answer && !c->blocked && c->due <= now) {
    size_t end = c->burst ? c->answer->size : c->answer->ends[c->write];
    ssize_t n = send(fd, c->answer->bytes + c->sent, end - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) { drop(fd); return; }
    if (n > 0) c->sent += n;
    if (c->sent < end) {
      c->blocked = 1;
      watch(fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
      return;
    }
    c->write++;
    c->due += c->step;
    if (c->sent == c->answer->size) {
      c->answer = NULL;
      take_request(fd);
    } else if (!c->step) {
      return;  // let other connections continue
    }
  }
}

static void receive(int fd) {
  Connection *c = &connections[fd];
  for (;;) {
    if (c->room - c->held < 16384) c->in = realloc(c->in, (c->room = c->room * 2 + 65536) + 1);
    ssize_t n = recv(fd, c->in + c->held, c->room - c->held, MSG_DONTWAIT);
    if (n > 0) { c->held += n; continue; }
    if (n == 0 || errno != EAGAIN) { drop(fd); return; }
    take_request(fd);
    return;
  }
}

static int patience(int64_t now) {  // milliseconds until the next write is due; -1: no write is due
  int64_t least = -1;
  for (int fd = 0; fd <= highest; fd++) {
    Connection *c = &connections[fd];
    if (!c->answer || c->blocked) continue;
    int64_t wait = c->due > now ? c->due - now : 0;
    if (least < 0 || wait < least) least = wait;
  }
  return least < 0 ? -1 : (int)((least + 999) / 1000);
}

int main(int count, char **words) {
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(words[1]) : 0), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) { perror("upstream"); return 1; }
  render_stream(&prose, 0);
  render_stream(&native, 1);
  render_stream(&written, 2);
  render_body(&body, "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":"
                     "{\"role\":\"assistant\",\"content\":\"Hello! How can I help you today?\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                     "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":9,\"total_tokens\":19}}");
  render_body(&models, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1,\"owned_by\":\"bench\"}]}");
  poller = epoll_create1(0);
  watch(listener, EPOLLIN, EPOLL_CTL_ADD);
  struct epoll_event events[256];
  for (;;) {
    int n = epoll_wait(poller, events, 256, patience(now_us()));
    for (int i = 0; i < n; i++) {
      int fd = events[i].data.fd, fresh;
      if (fd == listener) {
        while ((fresh = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
          if (fresh >= FDS) { close(fresh); continue; }
          setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
          memset(&connections[fresh], 0, sizeof(Connection));
          connections[fresh].in = malloc((connections[fresh].room = 65536) + 1);
          if (fresh > highest) highest = fresh;
          watch(fresh, EPOLLIN, EPOLL_CTL_ADD);
        }
        continue;
      }
      if (!connections[fd].in) continue;
      if (events[i].events & EPOLLOUT) {
        connections[fd].blocked = 0;
        watch(fd, EPOLLIN, EPOLL_CTL_MOD);
      }
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(fd);
    }
    int64_t now = now_us();
    for (int fd = 0; fd <= highest; fd++)
      if (connections[fd].answer) send_more(fd, now);
  }
}
