/* Times scrapes and does as little else as possible: its own time is part of every figure, and shifts ratios towards 1.
 *
 *   client ADDRESS TARGET COUNT SECONDS new|alone|kept plain|gzip
 *
 * ADDRESS is 127.0.0.1:PORT or the path of a socket file. Scrapes once without recording it, then COUNT times, or until the
 * recorded times, pauses excluded, add up to SECONDS. `alone` is a new connection after a pause of 20 ms, after which anything that
 * a server caches for scrapes in quick succession has expired. Timing starts before connecting on a new connection, and before
 * the first byte is sent on a kept one; it stops at the last byte of the body. Prints one line of JSON:
 * {"kept": bool, "gzip": bool, "microseconds": [..]}. If `kept` or `gzip` was requested and the server does not support it,
 * the server is not timed further: `microseconds` is empty. Exits with status 1 and a line on standard error if a response
 * is not 200 or is incomplete, or if nothing arrives for 30 seconds.
 * Built on the fly: gcc -O2 -o client client.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MOST = 1 << 16, PIECE = 1 << 18, TIMEOUT_S = 30, PAUSE_US = 20000 };

/* The rest of a body: a number of bytes, chunks, or everything until the connection ends. */
enum form { LENGTH, CHUNKS, TO_END };
enum chunk { SIZE, REST_OF_LINE, DATA, AFTER_DATA, TRAILER };

struct answer {
    enum form form;
    enum chunk chunk;
    unsigned long long left;
    int digits, line_length;
    int status, keeps, packed;
};

struct server {
    union {
        struct sockaddr any;
        struct sockaddr_in port;
        struct sockaddr_un file;
    } at;
    socklen_t size;
    char request[1024];
    int kept, connection;
};

static char head[HEAD_MOST + 1], piece[PIECE];

static void fail(const char *what) {
    fprintf(stderr, "client: %s\n", what);
    exit(1);
}

static void fail_call(const char *call) {
    perror(call);
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static void connect_to(struct server *server) {
    int one = 1;
    struct timeval most = {.tv_sec = TIMEOUT_S};
    int family = server->at.any.sa_family;
    server->connection = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->connection < 0)
        fail_call("socket");
    setsockopt(server->connection, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(server->connection, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (connect(server->connection, &server->at.any, server->size))
        fail_call("connect");
    if (family == AF_INET)
        setsockopt(server->connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void disconnect(struct server *server) {
    if (server->connection >= 0)
        close(server->connection);
    server->connection = -1;
}

/* The value of a header, in lower case, in `value`; 0 if there is none. */
static int header(const char *name, char *value, size_t most) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, length) || at[length] != ':')
            continue;
        for (at += length + 1; *at == ' ' || *at == '\t'; at++)
            ;
        size_t used = 0;
        for (; *at && *at != '\r' && used + 1 < most; at++)
            value[used++] = (char)tolower((unsigned char)*at);
        while (used && (value[used - 1] == ' ' || value[used - 1] == '\t'))
            used--;
        value[used] = 0;
        return 1;
    }
    return 0;
}

static void read_head(struct answer *answer) {
    char value[256];
    int minor;
    if (sscanf(head, "HTTP/1.%d %d", &minor, &answer->status) != 2)
        fail("the answer is not HTTP/1");
    int has_header = header("connection", value, sizeof value);
    answer->keeps = minor ? !(has_header && !strcmp(value, "close")) : has_header && !strcmp(value, "keep-alive");
    answer->packed = header("content-encoding", value, sizeof value) && !strcmp(value, "gzip");
    if (header("transfer-encoding", value, sizeof value) && !strcmp(value, "chunked"))
        answer->form = CHUNKS;
    else if (header("content-length", value, sizeof value)) {
        answer->form = LENGTH;
        answer->left = strtoull(value, NULL, 10);
    } else {
        answer->form = TO_END;
        answer->keeps = 0;
    }
}

static int hex(char digit) {
    return isdigit((unsigned char)digit) ? digit - '0' : isxdigit((unsigned char)digit) ? tolower(digit) - 'a' + 10 : -1;
}

/* Parses a piece of a chunked body. Returns whether the last chunk has been read. */
static int take_chunks(struct answer *answer, const char *data, size_t length) {
    for (size_t at = 0; at < length;) {
        if (answer->chunk == DATA) {
            size_t step = length - at < answer->left ? length - at : answer->left;
            at += step;
            answer->left -= step;
            if (!answer->left)
                answer->chunk = AFTER_DATA;
            continue;
        }
        char byte = data[at++];
        int digit = hex(byte);
        switch (answer->chunk) {
        case SIZE:
            if (digit >= 0 && answer->digits < 15) {
                answer->left = 16 * answer->left + (unsigned)digit;
                answer->digits++;
                break;
            }
            if (!answer->digits || digit >= 0)
                fail("a chunk has no size");
            answer->chunk = REST_OF_LINE;
            break;
        case REST_OF_LINE:
            if (byte == '\n')
                answer->chunk = answer->left ? DATA : TRAILER;
            break;
        case AFTER_DATA:
            if (byte == '\n') {
                answer->chunk = SIZE;
                answer->digits = 0;
            }
            break;
        default:
            if (byte == '\n' && !answer->line_length)
                return 1;
            answer->line_length = byte == '\n' ? 0 : answer->line_length + (byte != '\r');
        }
    }
    return 0;
}

/* Parses a piece of the body. Returns whether the end of the body has been read. */
static int take(struct answer *answer, const char *data, size_t length) {
    if (answer->form == CHUNKS)
        return take_chunks(answer, data, length);
    if (answer->form == TO_END)
        return 0;
    answer->left -= length < answer->left ? length : answer->left;
    return !answer->left;
}

/* The time at which the last byte arrived; 0 if a kept connection was closed before the response. */
static double receive(struct server *server, struct answer *answer) {
    size_t used = 0;
    const char *end = NULL;
    double at = 0;
    *answer = (struct answer){0};
    for (;;) {
        char *to = end ? piece : head + used;
        ssize_t got = recv(server->connection, to, end ? sizeof piece : HEAD_MOST - used, 0);
        if (got < 0 && !used && server->kept)
            return 0;
        if (got < 0)
            fail_call("recv");
        if (got > 0)
            at = now();
        if (!got && end && answer->form == TO_END)
            return at;
        if (!got && !used && server->kept)
            return 0;
        if (!got)
            fail("the answer is incomplete");
        if (end) {
            if (take(answer, piece, (size_t)got))
                return at;
            continue;
        }
        used += (size_t)got;
        head[used] = 0;
        end = memmem(head, used, "\r\n\r\n", 4);
        if (!end && used == HEAD_MOST)
            fail("the answer's head is too long");
        if (!end)
            continue;
        size_t whole = (size_t)(end + 4 - head);
        size_t rest = used - whole;
        /* The bytes after the head may be text, so they are not searched for headers. */
        memcpy(piece, head + whole, rest);
        head[whole] = 0;
        read_head(answer);
        if ((rest || (answer->form == LENGTH && !answer->left)) && take(answer, piece, rest))
            return at;
    }
}

/* One scrape. Returns microseconds, or 0 if the connection should have been kept but was not. */
static double scrape(struct server *server, struct answer *answer) {
    double begun = now();
    if (server->connection < 0)
        connect_to(server);
    size_t length = strlen(server->request);
    ssize_t sent = send(server->connection, server->request, length, MSG_NOSIGNAL);
    if (sent < 0 && !server->kept)
        fail_call("send");
    if (sent >= 0 && (size_t)sent != length)
        fail("the request was not sent whole");
    double over = sent < 0 ? 0 : receive(server, answer);
    if (over && answer->status != 200) {
        fprintf(stderr, "client: the answer is %d\n", answer->status);
        exit(1);
    }
    if (!server->kept || !over || !answer->keeps)
        disconnect(server);
    return server->kept && (!over || !answer->keeps) ? 0 : over - begun;
}

static int find(struct server *server, const char *address) {
    int port;
    *server = (struct server){.connection = -1};
    if (address[0] == '/' && strlen(address) < sizeof server->at.file.sun_path) {
        server->at.file.sun_family = AF_UNIX;
        strcpy(server->at.file.sun_path, address);
        server->size = sizeof server->at.file;
        return 1;
    }
    if (sscanf(address, "127.0.0.1:%d", &port) != 1 || port < 1 || port > 65535)
        return 0;
    server->at.port = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    server->at.port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->size = sizeof server->at.port;
    return 1;
}

int main(int argc, char **argv) {
    struct server server;
    struct answer answer = {0};
    if (argc != 7 || !find(&server, argv[1]) || atol(argv[3]) < 1 || atof(argv[4]) <= 0) {
        fprintf(stderr, "usage: client 127.0.0.1:PORT|SOCKET TARGET COUNT SECONDS new|alone|kept plain|gzip\n");
        return 64;
    }
    long most = atol(argv[3]), taken = 0;
    double limit = 1e6 * atof(argv[4]), sum = 0, *times = malloc((size_t)most * sizeof *times);
    int packed = !strcmp(argv[6], "gzip"), alone = !strcmp(argv[5], "alone");
    server.kept = !strcmp(argv[5], "kept");
    int length = snprintf(server.request, sizeof server.request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n", argv[2],
                          packed ? "Accept-Encoding: gzip\r\n" : "", server.kept ? "" : "Connection: close\r\n");
    if (!times || length >= (int)sizeof server.request)
        fail("COUNT is too large, or TARGET too long");
    /* The first scrape is slower: the memory pages of the server and of this program are cold. */
    double took = scrape(&server, &answer);
    while (took > 0 && (!packed || answer.packed) && taken < most && sum < limit) {
        if (alone)
            usleep(PAUSE_US);
        took = scrape(&server, &answer);
        times[taken++] = took;
        sum += took;
    }
    if (took <= 0 || (packed && !answer.packed))
        taken = 0;
    printf("{\"kept\": %s, \"gzip\": %s, \"microseconds\": [", server.kept && took > 0 ? "true" : "false", answer.packed ? "true" : "false");
    for (long number = 0; number < taken; number++)
        printf("%s%.3f", number ? ", " : "", times[number]);
    printf("]}\n");
    disconnect(&server);
    return 0;
}
