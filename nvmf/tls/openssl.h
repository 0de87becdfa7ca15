/* The OpenSSL functions of package tls, loaded by dlopen(3). A session is one TLS connection.
 * Its functions must not be called concurrently. They do no I/O: the caller passes received
 * bytes to tls_feed and sends the bytes that tls_drain returns. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { TLS_MORE = 0, TLS_FAILED = -1, TLS_CLOSED = -2, TLS_NOT_TLS = -3 };
enum { TLS_WHY = 256, TLS_MAX_SECRET = 48 };

struct tls_session;

/* Loads OpenSSL. Returns NULL, or the reason why OpenSSL cannot be loaded. */
const char *tls_load(void);

/* tls_client creates a client's session with its key. tls_server creates a server's session,
 * which gets the client's key from tlsFindKey(finder, ...). Both return NULL if memory is
 * exhausted. */
struct tls_session *tls_client(const char *identity, const void *secret, size_t size);
struct tls_session *tls_server(uintptr_t finder);
void tls_free(struct tls_session *s);

/* Continues the handshake. Returns 1 when it is complete, TLS_MORE when it needs data of the
 * peer, or an error with its reason in why. */
int tls_handshake(struct tls_session *s, char why[TLS_WHY]);

/* Returns the number of bytes of plain text read, TLS_MORE, TLS_CLOSED or an error. */
int tls_read(struct tls_session *s, void *to, int capacity, char why[TLS_WHY]);
/* Encrypts all n bytes. Returns n or an error. */
int tls_write(struct tls_session *s, const void *from, int n, char why[TLS_WHY]);
void tls_close_notify(struct tls_session *s);

/* Passes n received bytes to the session, which takes all of them. Returns 1, or 0 if memory is
 * exhausted. */
int tls_feed(struct tls_session *s, const void *from, int n);
/* Writes bytes to be sent into to. Returns their number, 0 if there are none. */
int tls_drain(struct tls_session *s, void *to, int capacity);
