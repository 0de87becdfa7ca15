#include "openssl.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

/* Functions of libssl, and of libcrypto, which libssl loads. */
#define FUNCTIONS(F)                                                                                                   \
	F(BIO_ctrl) F(BIO_new) F(BIO_read) F(BIO_s_mem) F(BIO_write)                                                   \
	F(ERR_clear_error) F(ERR_error_string_n) F(ERR_get_error)                                                      \
	F(SSL_CTX_ctrl) F(SSL_CTX_free) F(SSL_CTX_new) F(SSL_CTX_set_ciphersuites)       \
	F(SSL_CTX_set_num_tickets) F(SSL_CTX_set_psk_find_session_callback) F(SSL_CTX_set_psk_use_session_callback)    \
	F(SSL_CIPHER_find) F(SSL_SESSION_free) F(SSL_SESSION_new) F(SSL_SESSION_set1_master_key)                       \
	F(SSL_SESSION_set_cipher) F(SSL_SESSION_set_protocol_version)                                                  \
	F(SSL_do_handshake) F(SSL_free) F(SSL_get_error) F(SSL_get_ex_data) F(SSL_new) F(SSL_read)                     \
	F(SSL_set_accept_state) F(SSL_set_ciphersuites) F(SSL_set_bio) F(SSL_set_connect_state) F(SSL_set_ex_data) F(SSL_shutdown)             \
	F(SSL_write) F(TLS_client_method) F(TLS_server_method)

static struct {
#define F(name) __typeof__(&name) name;
	FUNCTIONS(F)
#undef F
} lib;

static const char *load_error;
static SSL_CTX *client_ctx, *server_ctx;

struct tls_session {
	SSL *ssl;
	BIO *in, *out;      /* memory BIOs, owned by ssl */
	char *identity;     /* set for a client only */
	size_t size;        /* number of bytes in secret */
	uintptr_t finder;   /* set for a server only */
	unsigned char secret[TLS_MAX_SECRET];
};

/* The cipher suite for a secret of size bytes: its name, and its code in the protocol. */
static const struct suite {
	const char *name;
	unsigned char code[2];
} suites[] = {{"TLS_AES_128_GCM_SHA256", {0x13, 0x01}}, {"TLS_AES_256_GCM_SHA384", {0x13, 0x02}}};

static const struct suite *suite(size_t size)
{
	return &suites[size == TLS_MAX_SECRET];
}

/* Returns an SSL_SESSION with the pre-shared key, or NULL if memory is exhausted. */
static SSL_SESSION *key_session(SSL *ssl, const unsigned char *secret, size_t size)
{
	const SSL_CIPHER *cipher = lib.SSL_CIPHER_find(ssl, suite(size)->code);
	SSL_SESSION *session = lib.SSL_SESSION_new();
	if (cipher && session && lib.SSL_SESSION_set1_master_key(session, secret, size) &&
	    lib.SSL_SESSION_set_cipher(session, cipher) && lib.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	lib.SSL_SESSION_free(session);
	return NULL;
}

/* Callback of a client: returns its key for the first ClientHello and, after a
 * HelloRetryRequest, for the second. */
static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *length, SSL_SESSION **session)
{
	struct tls_session *s = lib.SSL_get_ex_data(ssl, 0);
	(void)md; /* the client offers only the suite of the key */
	*session = key_session(ssl, s->secret, s->size);
	*identity = (const unsigned char *)s->identity;
	*length = strlen(s->identity);
	return *session != NULL;
}

/* Callback of a server: looks up the key that the client names. Without a key the handshake
 * fails, since the server has no certificate either. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t length, SSL_SESSION **session)
{
	struct tls_session *s = lib.SSL_get_ex_data(ssl, 0);
	size_t size = tlsFindKey(s->finder, (void *)identity, length, s->secret);
	*session = size ? key_session(ssl, s->secret, size) : NULL;
	return !size || *session;
}

static SSL_CTX *context(const SSL_METHOD *method)
{
	SSL_CTX *ctx = lib.SSL_CTX_new(method);
	if (!ctx)
		return NULL;
	lib.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL);
	lib.SSL_CTX_ctrl(ctx, SSL_CTRL_MODE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, NULL);
	return ctx;
}

static void load(void)
{
	void *ssl = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
	if (!ssl) {
		load_error = "libssl.so.3 of OpenSSL 3 cannot be loaded: install it (Debian: libssl3)";
		return;
	}
#define F(name)                                                                                                        \
	if (!(lib.name = (__typeof__(lib.name))dlsym(ssl, #name))) {                                                   \
		load_error = "libssl.so.3 lacks " #name;                                                               \
		return;                                                                                                \
	}
	FUNCTIONS(F)
#undef F
	client_ctx = context(lib.TLS_client_method());
	server_ctx = context(lib.TLS_server_method());
	if (!client_ctx || !server_ctx) {
		load_error = "OpenSSL cannot be set up";
		return;
	}
	lib.SSL_CTX_set_psk_use_session_callback(client_ctx, use_key);
	lib.SSL_CTX_set_psk_find_session_callback(server_ctx, find_key);
	lib.SSL_CTX_set_num_tickets(server_ctx, 0);
	lib.SSL_CTX_set_ciphersuites(server_ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
}

const char *tls_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return load_error;
}

static struct tls_session *session(SSL_CTX *ctx)
{
	struct tls_session *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->ssl = lib.SSL_new(ctx);
	s->in = lib.BIO_new(lib.BIO_s_mem());
	s->out = lib.BIO_new(lib.BIO_s_mem());
	if (!s->ssl || !s->in || !s->out || !lib.SSL_set_ex_data(s->ssl, 0, s)) {
		tls_free(s); /* a BIO that has no SSL yet is leaked; memory is exhausted anyway */
		return NULL;
	}
	/* An empty memory BIO must report "retry", not the end of the stream. */
	lib.BIO_ctrl(s->in, BIO_C_SET_BUF_MEM_EOF_RETURN, -1, NULL);
	lib.BIO_ctrl(s->out, BIO_C_SET_BUF_MEM_EOF_RETURN, -1, NULL);
	lib.SSL_set_bio(s->ssl, s->in, s->out);
	return s;
}

struct tls_session *tls_client(const char *identity, const void *secret, size_t size)
{
	struct tls_session *s = session(client_ctx);
	if (!s)
		return NULL;
	memcpy(s->secret, secret, size);
	s->size = size;
	s->identity = strdup(identity);
	if (!s->identity || !lib.SSL_set_ciphersuites(s->ssl, suite(size)->name)) {
		tls_free(s);
		return NULL;
	}
	lib.SSL_set_connect_state(s->ssl);
	return s;
}

struct tls_session *tls_server(uintptr_t finder)
{
	struct tls_session *s = session(server_ctx);
	if (!s)
		return NULL;
	s->finder = finder;
	lib.SSL_set_accept_state(s->ssl);
	return s;
}

void tls_free(struct tls_session *s)
{
	lib.SSL_free(s->ssl);
	explicit_bzero(s->secret, sizeof s->secret);
	free(s->identity);
	free(s);
}

/* Translates the failure of an OpenSSL call into a result of this file. */
static int outcome(struct tls_session *s, int result, char why[TLS_WHY])
{
	switch (lib.SSL_get_error(s->ssl, result)) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return TLS_MORE;
	case SSL_ERROR_ZERO_RETURN:
		return TLS_CLOSED;
	}
	unsigned long e = lib.ERR_get_error();
	lib.ERR_error_string_n(e, why, TLS_WHY);
	int reason = ERR_GET_REASON(e);
	return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ? TLS_NOT_TLS : TLS_FAILED;
}

int tls_handshake(struct tls_session *s, char why[TLS_WHY])
{
	lib.ERR_clear_error();
	int result = lib.SSL_do_handshake(s->ssl);
	if (result != 1)
		return outcome(s, result, why);
	explicit_bzero(s->secret, sizeof s->secret);
	return 1;
}

int tls_read(struct tls_session *s, void *to, int capacity, char why[TLS_WHY])
{
	lib.ERR_clear_error();
	int n = lib.SSL_read(s->ssl, to, capacity);
	return n > 0 ? n : outcome(s, n, why);
}

int tls_write(struct tls_session *s, const void *from, int n, char why[TLS_WHY])
{
	lib.ERR_clear_error();
	int written = lib.SSL_write(s->ssl, from, n);
	return written > 0 ? written : outcome(s, written, why);
}

void tls_close_notify(struct tls_session *s)
{
	lib.SSL_shutdown(s->ssl);
}

int tls_feed(struct tls_session *s, const void *from, int n)
{
	return lib.BIO_write(s->in, from, n) == n;
}

int tls_drain(struct tls_session *s, void *to, int capacity)
{
	int n = lib.BIO_read(s->out, to, capacity);
	return n > 0 ? n : 0;
}
