/* The part of OpenSSL that package tls uses, loaded by dlopen(3). A session is one
 * connection; its functions are called by one thread at a time. It does no I/O:
 * feed() takes what came from the network, drain() returns what is to be sent. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { TLS_MORE = 0, TLS_FAILED = -1, TLS_CLOSED = -2, TLS_NOT_TLS = -3 };
enum { TLS_WHY = 256, TLS_MAX_SECRET = 48 };

struct tls_session;

/* Loads OpenSSL; NULL, or why it cannot be had. */
const char *tls_load(void);

/* A client's session with its key, or a server's, which asks tlsFindKey(finder, ...). NULL without memory. */
struct tls_session *tls_client(const char *identity, const void *secret, size_t size);
struct tls_session *tls_server(uintptr_t finder);
void tls_free(struct tls_session *s);

/* 1 when the ends have agreed, else TLS_MORE, or an error with its reason in why. */
int tls_handshake(struct tls_session *s, char why[TLS_WHY]);

/* Bytes of plain text, else TLS_MORE, TLS_CLOSED or an error. */
int tls_read(struct tls_session *s, void *to, int capacity, char why[TLS_WHY]);
/* Encrypts all n bytes: n, or an error. */
int tls_write(struct tls_session *s, const void *from, int n, char why[TLS_WHY]);
void tls_close_notify(struct tls_session *s);

/* All n bytes are taken: 1, 0 without memory. */
int tls_feed(struct tls_session *s, const void *from, int n);
/* How many bytes were put there; 0 if nothing is to be sent. */
int tls_drain(struct tls_session *s, void *to, int capacity);
