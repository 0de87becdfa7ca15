//go:build spdk

#include <errno.h>
#include <signal.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>

#include "driver.h"
#include "internal.h"

/* SPDK uses OpenSSL for TLS. The application may use OpenSSL for other purposes. */

void tls_init(void)
{
	/* Files must work until libc flushes the last stream. OpenSSL would register functions that
	 * clean up at exit, and that run before then. */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

/* A SIGPIPE of the application was pending for this thread at tls_begin. */
static __thread bool pending;

static void signal_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGPIPE);
}

void tls_begin(bool secure, sigset_t *before)
{
	sigset_t pipe, waiting;

	if (!secure)
		return;
	/* OpenSSL writes to sockets by write(2), which raises SIGPIPE when the peer has closed. */
	signal_set(&pipe);
	pthread_sigmask(SIG_BLOCK, &pipe, before);
	pending = sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE) == 1;
	/* SSL_get_error would report an earlier error in this thread's queue as its own. */
	ERR_clear_error();
}

void tls_end(bool secure, const sigset_t *before)
{
	struct timespec none = {0, 0};
	sigset_t pipe;

	if (!secure)
		return;
	tls_note(secure);
	ERR_clear_error();
	signal_set(&pipe);
	while (!pending && sigtimedwait(&pipe, NULL, &none) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

void tls_note(bool secure)
{
	unsigned long error = secure ? ERR_peek_error() : 0;

	/* The error of a connection that is given up before TLS has begun is not a reason. */
	if (error != 0 && ERR_GET_REASON(error) != SSL_R_SHUTDOWN_WHILE_IN_INIT)
		tls_reason(ERR_GET_REASON(error), ERR_reason_error_string(error));
}
