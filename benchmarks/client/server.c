/* A server of token streams whose spacing is known, to measure load clients with. Build: cc -O2 -o server server.c
 *
 *     server PORT CHUNKS INTERVAL_US TOKENS
 *
 * Every INTERVAL_US each open stream gets its next chunk of TOKENS tokens, all at the same tick, as the steps of a batch
 * give them; an answer has CHUNKS chunks. Endpoints: POST /v1/chat/completions, /v1/completions (usage in every chunk
 * where the request asks for continuous_usage_stats) and /generate (cumulative, SGLang's default); GET /count tells the
 * chunks sent so far, GET /stats also the true gaps between sends of one stream. Every other GET answers an empty object.
 *
 * One thread, loopback only. A client that reads too slowly finds its chunks joined, as with a real server; the ticks of
 * the others go on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 8192, MAX_GAPS = 1 << 22, EVENTS = 512, LONGEST_HEAD = 1 << 20 };
enum kind { CHAT, COMPLETIONS, GENERATE };

struct connection {
    char *in, *out;                 /* received and not read; not sent yet */
    size_t in_size, in_room, out_size, out_room;
    enum kind kind;
    int streaming, place, usage;    /* place: in `open`; usage: in every chunk */
    int sent;                       /* chunks */
    double last;                    /* when the chunk before was sent, s */
};

static struct connection *connections[MAX_FD];
static int open_streams[MAX_FD], streams;
static int poller, chunks, tokens;
static long chunks_sent, requests;
static float gaps[MAX_GAPS];
static int gap_count;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void watch(int fd, int operation, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(poller, operation, fd, &event);
}

static void room(char **buffer, size_t *has, size_t wanted) {
    if (*has >= wanted) return;
    while (*has < wanted) *has = *has ? 2 * *has : 4096;
    *buffer = realloc(*buffer, *has);
    if (!*buffer) { perror("realloc"); exit(1); }
}

static void put(int fd, const char *data, size_t size) {
    struct connection *c = connections[fd];
    if (!c->out_size) {
        ssize_t done = send(fd, data, size, MSG_NOSIGNAL);
        if (done == (ssize_t)size) return;
        if (done > 0) { data += done; size -= done; }
        else if (done < 0 && errno != EAGAIN) return;  /* its end is read later */
        watch(fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    room(&c->out, &c->out_room, c->out_size + size);
    memcpy(c->out + c->out_size, data, size);
    c->out_size += size;
}

static void put_rest(int fd) {
    struct connection *c = connections[fd];
    ssize_t done = send(fd, c->out, c->out_size, MSG_NOSIGNAL);
    if (done <= 0) return;
    memmove(c->out, c->out + done, c->out_size - done);
    c->out_size -= done;
    if (!c->out_size) watch(fd, EPOLL_CTL_MOD, EPOLLIN);
}

/* A text that grows; one at a time. */
static char *text;
static size_t text_size, text_room;

static void add(const char *format, ...) {
    va_list list;
    for (;;) {
        va_start(list, format);
        int size = vsnprintf(text + text_size, text_room - text_size, format, list);
        va_end(list);
        if (text_size + size < text_room) { text_size += size; return; }
        room(&text, &text_room, text_size + size + 1);
    }
}

/* Put the text, or "data: " and the text, around which HTTP puts the size of a chunk. */
static void put_event(int fd) {
    char head[32];
    size_t size = text_size + strlen("data: \n\n");
    int length = sprintf(head, "%zx\r\ndata: ", size);
    room(&text, &text_room, text_size + length + 8);
    memmove(text + length, text, text_size);
    memcpy(text, head, length);
    memcpy(text + length + text_size, "\n\n\r\n", 4);
    put(fd, text, length + text_size + 4);
    text_size = 0;
}

static void add_words(int count) {
    for (int i = 0; i < count; i++) add(" tok");
}

static void next_generate(int fd, struct connection *c) {
    int done = c->sent * tokens, last = c->sent == chunks;
    add("{\"text\":\"");
    add_words(done);
    add("\",\"output_ids\":[");
    for (int i = 0; i < done; i++) add(i ? ",%d" : "%d", 1000 + i % 50000);
    add("],\"meta_info\":{\"id\":\"0123456789abcdef0123456789abcdef\",\"finish_reason\":%s,\"prompt_tokens\":16,"
        "\"weight_version\":\"default\",\"completion_tokens\":%d,\"cached_tokens\":0}}",
        last ? "{\"type\":\"length\",\"length\":0}" : "null", done);
    put_event(fd);
}

static void next_openai(int fd, struct connection *c) {
    int done = c->sent * tokens, last = c->sent == chunks, chat = c->kind == CHAT;
    const char *head = chat ? "{\"id\":\"0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
                              "\"created\":1700000000,\"model\":\"target\""
                            : "{\"id\":\"0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\","
                              "\"created\":1700000000,\"model\":\"target\"";
    char usage[160];
    sprintf(usage, ",\"usage\":{\"prompt_tokens\":16,\"total_tokens\":%d,\"completion_tokens\":%d,"
                   "\"prompt_tokens_details\":null,\"reasoning_tokens\":0}", 16 + done, done);
    add("%s,\"choices\":[{\"index\":0,", head);
    if (chat) add("\"delta\":{\"role\":null,\"content\":\"");
    else add("\"text\":\"");
    add_words(tokens);
    add(chat ? "\",\"reasoning_content\":null,\"tool_calls\":null}," : "\",");
    add("\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}]%s}", last ? "\"length\"" : "null",
        c->usage ? usage : "");
    put_event(fd);
    if (last) {
        add("%s,\"choices\":[]%s}", head, usage);
        put_event(fd);
    }
}

static void close_stream(struct connection *c) {
    c->streaming = 0;
    open_streams[c->place] = open_streams[--streams];
    connections[open_streams[c->place]]->place = c->place;
}

static void next_chunk(int fd) {
    struct connection *c = connections[fd];
    double time = now();
    if (c->sent && gap_count < MAX_GAPS) gaps[gap_count++] = time - c->last;
    c->last = time;
    c->sent++;
    chunks_sent++;
    if (c->kind == GENERATE) next_generate(fd, c);
    else next_openai(fd, c);
    if (c->sent < chunks) return;
    add("[DONE]");
    put_event(fd);
    put(fd, "0\r\n\r\n", 5);
    requests++;
    close_stream(c);
}

static int by_size(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static void answer(int fd, const char *path) {
    char head[128];
    text_size = 0;
    if (!strncmp(path, "/stats", 6)) {
        double sum = 0;
        for (int i = 0; i < gap_count; i++) sum += gaps[i];
        qsort(gaps, gap_count, sizeof *gaps, by_size);
        add("{\"chunks\":%ld,\"requests\":%ld,\"gaps\":%d,\"gap_mean_s\":%.9f,\"gap_p99_s\":%.9f}", chunks_sent, requests,
            gap_count, gap_count ? sum / gap_count : 0, gap_count ? gaps[(int)(0.99 * (gap_count - 1))] : 0);
    } else if (!strncmp(path, "/count", 6)) {
        add("%ld", chunks_sent);
    } else if (!strncmp(path, "/v1/models", 10)) {
        add("{\"object\":\"list\",\"data\":[{\"id\":\"target\",\"object\":\"model\",\"created\":0,\"owned_by\":\"us\"}]}");
    } else {
        add("{}");
    }
    int size = sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", text_size);
    put(fd, head, size);
    put(fd, text, text_size);
    text_size = 0;
}

static void open_stream(int fd, const char *head, const char *body) {
    struct connection *c = connections[fd];
    const char *start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    c->kind = strstr(head, " /generate") ? GENERATE : strstr(head, "/chat/") ? CHAT : COMPLETIONS;
    const char *asked = strstr(body, "\"continuous_usage_stats\"");
    c->usage = asked && strstr(asked, "true") && strstr(asked, "true") < asked + 30;
    c->sent = 0;
    c->streaming = 1;
    c->place = streams;
    open_streams[streams++] = fd;
    put(fd, start, strlen(start));
}

/* Length of the first whole request in what was received; 0 while it is not whole. */
static size_t whole(const char *in, size_t size, char **body) {
    char *end = memmem(in, size, "\r\n\r\n", 4);
    if (!end) return 0;
    char *head_end = end + 4, *length = strcasestr(in, "content-length:");
    *body = head_end;
    if (length && length < end) {
        size_t total = head_end - in + strtoul(length + 15, 0, 10);
        return size >= total ? total : 0;
    }
    char *chunked = strcasestr(in, "transfer-encoding:");
    if (!chunked || chunked > end) return head_end - in;
    char *last = memmem(head_end, size - (head_end - in), "0\r\n\r\n", 5);  /* a body of JSON has no such line */
    return last ? last + 5 - in : 0;
}

static void received(int fd) {
    struct connection *c = connections[fd];
    room(&c->in, &c->in_room, c->in_size + 65536 + 1);
    ssize_t got = recv(fd, c->in + c->in_size, 65536, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        if (c->streaming) close_stream(c);
        close(fd);
        free(c->in);
        free(c->out);
        free(c);
        connections[fd] = 0;
        return;
    }
    c->in_size += got;
    c->in[c->in_size] = 0;
    char *body;
    size_t size;
    while (c->in_size && (size = whole(c->in, c->in_size, &body))) {
        char kept = c->in[size];
        c->in[size] = 0;
        if (strncmp(c->in, "POST", 4) || strstr(c->in, "POST /flush_cache") || strstr(c->in, "POST /abort")) {
            char *path = strchr(c->in, ' ');
            answer(fd, path ? path + 1 : "");
        } else if (!c->streaming) {
            open_stream(fd, c->in, body);
        }
        c->in[size] = kept;
        memmove(c->in, c->in + size, c->in_size - size);
        c->in_size -= size;
        c->in[c->in_size] = 0;
    }
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connections[fd] = calloc(1, sizeof **connections);
        watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    }
}

int main(int count, char **words) {
    if (count != 5) { fprintf(stderr, "usage: server PORT CHUNKS INTERVAL_US TOKENS\n"); return 2; }
    int port = atoi(words[1]), on = 1;
    long interval = atol(words[3]);
    chunks = atoi(words[2]);
    tokens = atoi(words[4]);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&place, sizeof place) || listen(listener, 4096)) { perror("listen"); return 1; }
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec period = {{interval / 1000000, interval % 1000000 * 1000}, {interval / 1000000, interval % 1000000 * 1000}};
    timerfd_settime(timer, 0, &period, 0);
    poller = epoll_create1(0);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN);
    watch(timer, EPOLL_CTL_ADD, EPOLLIN);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                accept_all(listener);
            } else if (fd == timer) {
                unsigned long ticks;
                if (read(timer, &ticks, sizeof ticks) < 0) continue;
                for (int s = streams - 1; s >= 0; s--) next_chunk(open_streams[s]);  /* one that ends swaps the last in */
            } else if (connections[fd]) {
                if (events[i].events & EPOLLOUT) put_rest(fd);
                if (events[i].events & ~EPOLLOUT) received(fd);
            }
        }
    }
}
