// An HTTP/1.1 load generator: each of CONNECTIONS connections sends the same request again after every answer. One
// thread, epoll. load.py is the Python version.
//
//   load PORT PATH CONNECTIONS SECONDS REQUESTS BODYFILE [HEADER: VALUE]...
//
// If REQUESTS is 0, it sends as many requests as fit into SECONDS. A stream counts if it contains the event that ends it
// ([DONE], response.completed or message_stop). Prints one JSON object with the numbers of requests, errors, broken
// streams (without that event) and events, and with the microseconds to the first token (the mark "Zz00" or, without it,
// the first byte) and to the end of the answer.
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

enum { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER };
enum { KEEP = 31, MOST = 1000000 };

typedef struct {
  int fd, state, status, head_size, line_size, seen_end, closing, kept;
  size_t written;
  int64_t left, began, first, token;
  char head[8192], line[32], tail[KEEP + 1];  // `tail`: the last bytes of the body, to find marks that two reads cut in two
} Connection;

static char *request;
static size_t request_size;
static int poller, port, alive, streaming;
static long started, most, errors, broken, events, finished;
static int64_t deadline, *firsts, *totals;

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void watch(Connection *c, uint32_t what, int how) {
  struct epoll_event event = {.events = what, .data.ptr = c};
  epoll_ctl(poller, how, c->fd, &event);
}

static void write_request(Connection *c) {
  while (c->written < request_size) {
    ssize_t n = send(c->fd, request + c->written, request_size - c->written, MSG_NOSIGNAL);
    if (n < 0) { watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD); return; }
    c->written += n;
  }
  watch(c, EPOLLIN, EPOLL_CTL_MOD);
}

static void start(Connection *c) {
  if ((most && started >= most) || now_us() >= deadline) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    alive--;
    return;
  }
  started++;
  c->written = 0;
  c->state = HEAD;
  c->head_size = c->line_size = c->seen_end = c->closing = c->kept = c->status = 0;
  c->first = c->token = 0;
  c->began = now_us();
  if (c->fd >= 0) { write_request(c); return; }
  int one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  connect(c->fd, (void *)&address, sizeof address);
  watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
}

static void finish(Connection *c, int ok) {
  int64_t now = now_us();
  if (!ok || c->status != 200) errors++;
  else if (streaming && !c->seen_end) broken++;
  else {
    if (finished < MOST) {
      firsts[finished] = (c->token ? c->token : c->first) - c->began;
      totals[finished] = now - c->began;
    }
    finished++;
  }
  if (!ok || c->closing) { close(c->fd); c->fd = -1; }
  if (errors > 100) deadline = 0;
  start(c);
}

static void read_body(Connection *c, const char *bytes, size_t size) {
  static char joined[KEEP + 262144 + 1];
  if (!c->first) c->first = now_us();
  memcpy(joined, c->tail, c->kept);
  memcpy(joined + c->kept, bytes, size);
  size_t whole = c->kept + size;
  if (!c->token && memmem(joined, whole, "Zz00", 4)) c->token = now_us();
  if (!c->seen_end && (memmem(joined, whole, "data: [DONE]", 12) || memmem(joined, whole, "event: response.completed", 25) || memmem(joined, whole, "event: message_stop", 19))) c->seen_end = 1;
  for (const char *p = bytes; (p = memmem(p, bytes + size - p, "data: ", 6)); p += 6) events++;
  c->kept = whole < KEEP ? whole : KEEP;
  memcpy(c->tail, joined + whole - c->kept, c->kept);
}

static int read_head(Connection *c, const char *bytes, size_t size, size_t *used) {  // 1: the answer is complete, -1: it cannot be read
  int before = c->head_size;
  size_t take = size < sizeof c->head - 1 - before ? size : sizeof c->head - 1 - before;
  memcpy(c->head + before, bytes, take);
  c->head_size += take;
  c->head[c->head_size] = 0;
  char *end = strstr(c->head, "\r\n\r\n");
  *used = take;
  if (!end) return c->head_size >= (int)sizeof c->head - 1 ? -1 : 0;
  *used = end - c->head + 4 - before;
  end[2] = 0;
  c->status = atoi(c->head + 9);
  c->closing = strcasestr(c->head, "\nconnection: close") != NULL;
  char *length = strcasestr(c->head, "\ncontent-length:");
  if (length) {
    c->left = strtoll(length + 16, NULL, 10);
    c->state = SIZED;
    return c->left == 0;
  }
  c->state = CHUNK_SIZE;
  return strcasestr(c->head, "\ntransfer-encoding: chunked") ? 0 : -1;
}

static int read_answer(Connection *c, const char *bytes, size_t size) {  // 1: the answer is complete, -1: it cannot be read, 0: more follows
  size_t at = 0, used;
  while (at < size) {
    if (c->state == HEAD) {
      int over = read_head(c, bytes + at, size - at, &used);
      at += used;
      if (over) return over;
    } else if (c->state == SIZED || c->state == CHUNK) {
      used = (int64_t)(size - at) < c->left ? size - at : (size_t)c->left;
      read_body(c, bytes + at, used);
      at += used;
      c->left -= used;
      if (c->left == 0 && c->state == SIZED) return 1;
      if (c->left == 0) c->state = CHUNK_END;
    } else {
      char sign = bytes[at++];
      if (sign != '\n') {
        if (sign != '\r' && c->line_size < (int)sizeof c->line - 1) c->line[c->line_size++] = sign;
        continue;
      }
      c->line[c->line_size] = 0;
      if (c->state == TRAILER && c->line_size == 0) return 1;
      if (c->state == CHUNK_SIZE) {
        c->left = strtoll(c->line, NULL, 16);
        c->state = c->left ? CHUNK : TRAILER;
      } else if (c->state == CHUNK_END) {
        c->state = CHUNK_SIZE;
      }
      c->line_size = 0;
    }
  }
  return 0;
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static long at_share(int64_t *sorted, double share) {
  long known = finished < MOST ? finished : MOST;
  return known ? (long)sorted[(long)((known - 1) * share)] : -1;
}

int main(int count, char **words) {
  if (count < 7) { fprintf(stderr, "load PORT PATH CONNECTIONS SECONDS REQUESTS BODYFILE [HEADER: VALUE]...\n"); return 2; }
  port = atoi(words[1]);
  int connections = atoi(words[3]);
  most = atol(words[5]);
  FILE *file = fopen(words[6], "rb");
  if (!file) { perror(words[6]); return 2; }
  char *content = malloc(1 << 20);
  size_t size = fread(content, 1, 1 << 20, file);
  fclose(file);
  streaming = memmem(content, size, "\"stream\": true", 14) || memmem(content, size, "\"stream\":true", 13);
  request = malloc(size + 16384);
  request_size = sprintf(request, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", words[2], port, size);
  for (int i = 7; i < count; i++) request_size += sprintf(request + request_size, "%s\r\n", words[i]);
  request_size += sprintf(request + request_size, "\r\n");
  memcpy(request + request_size, content, size);
  request_size += size;
  firsts = malloc(MOST * sizeof *firsts);
  totals = malloc(MOST * sizeof *totals);
  poller = epoll_create1(0);
  Connection *all = calloc(connections, sizeof *all);
  int64_t began = now_us();
  deadline = began + (int64_t)(atof(words[4]) * 1e6);
  int64_t last = deadline + 60000000;
  alive = connections;
  for (int i = 0; i < connections; i++) {
    all[i].fd = -1;
    start(&all[i]);
  }
  struct epoll_event ready[256];
  static char bytes[262144];
  while (alive > 0 && now_us() < last) {
    int n = epoll_wait(poller, ready, 256, 500);
    for (int i = 0; i < n; i++) {
      Connection *c = ready[i].data.ptr;
      if (c->fd < 0) continue;
      if (ready[i].events & EPOLLOUT) write_request(c);
      if (!(ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
      ssize_t got = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) continue;
      int over = got > 0 ? read_answer(c, bytes, got) : -1;
      if (over) finish(c, over > 0);
    }
  }
  long known = finished < MOST ? finished : MOST;
  qsort(firsts, known, sizeof *firsts, compare);
  qsort(totals, known, sizeof *totals, compare);
  printf("{\"requests\":%ld,\"errors\":%ld,\"broken\":%ld,\"unfinished\":%d,\"seconds\":%.3f,\"events\":%ld,\"first_p50\":%ld,\"first_p99\":%ld,\"total_p50\":%ld,\"total_p99\":%ld}\n",
         finished, errors, broken, alive, (now_us() - began) / 1e6, events, at_share(firsts, .5), at_share(firsts, .99), at_share(totals, .5), at_share(totals, .99));
  return 0;
}
