//go:build spdk

#include <errno.h>
#include <signal.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>

#include "driver.h"
#include "internal.h"

/* OpenSSL does TLS, for SPDK, and perhaps something else for the application. */

void tls_init(void)
{
	/* Files have to work until libc flushes the last stream, when functions that
	 * OpenSSL would register now to be called at the end have long run. */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

/* A SIGPIPE of the application's waits for this thread: between begin and end. */
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
	/* It writes to its sockets as to any file. */
	signal_set(&pipe);
	pthread_sigmask(SIG_BLOCK, &pipe, before);
	pending = sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE) == 1;
	/* SSL_get_error takes an error that somebody has left for its own. */
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

	/* That of a connection which is given up before TLS began is no reason. */
	if (error != 0 && ERR_GET_REASON(error) != SSL_R_SHUTDOWN_WHILE_IN_INIT)
		tls_reason(ERR_GET_REASON(error), ERR_reason_error_string(error));
}
