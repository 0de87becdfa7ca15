//go:build spdk

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <spdk/keyring_module.h>

#include "driver.h"
#include "internal.h"

static __thread uint32_t proofs;

uint32_t driver_proofs(void)
{
	return proofs;
}

/* The data of a key is its text, in memory that SPDK allocates for the key. */

static size_t size_of_key(void)
{
	return DRIVER_KEY;
}

static int add_key(struct spdk_key *key, void *text)
{
	snprintf(spdk_key_get_ctx(key), DRIVER_KEY, "%s", (char *)text);
	return 0;
}

static int get_key(struct spdk_key *key, void *buffer, int size)
{
	char *text = spdk_key_get_ctx(key);
	int length = (int)strlen(text);

	if (length > size)
		return -ENOBUFS;
	memcpy(buffer, text, (size_t)length);
	proofs += strncmp(text, "DHHC", 4) == 0;
	return length;
}

static void clear_key(struct spdk_key *key)
{
	explicit_bzero(spdk_key_get_ctx(key), DRIVER_KEY);
}

static struct spdk_keyring_module memory = {
	.name = "nvmecr",
	.add_key = add_key,
	.remove_key = clear_key,
	.get_key = get_key,
	.get_ctx_size = size_of_key,
};

int keys_init(void)
{
	spdk_keyring_register_module(&memory);
	return spdk_keyring_init();
}

/* hold adds a key to the keyring, under a name that is unique while the key exists. */
static int hold(struct spdk_key **key, const char *text)
{
	struct spdk_key_opts opts = {.size = sizeof opts, .module = &memory, .ctx = (void *)text};
	char name[32];
	int result;

	if (*text == '\0')
		return 0;
	snprintf(name, sizeof name, "nvmecr-%p", (void *)key);
	opts.name = name;
	result = spdk_keyring_add_key(&opts);
	if (result == 0 && (*key = spdk_keyring_get_key(name)) == NULL)
		result = -ENOKEY; /* SPDK would connect without the key */
	return result;
}

static void drop(struct spdk_key **key)
{
	if (*key == NULL)
		return;
	spdk_keyring_remove_key(spdk_key_get_name(*key), &memory);
	spdk_keyring_put_key(*key);
	*key = NULL;
}

int keys_hold(struct spdk_nvme_ctrlr_opts *opts, const struct driver_address *address)
{
	int result = hold(&opts->dhchap_key, address->host_key);

	if (result == 0)
		result = hold(&opts->dhchap_ctrlr_key, address->target_key);
	if (result == 0)
		result = hold(&opts->tls_psk, address->tls_key);
	opts->dhchap_digests = address->hashes;
	opts->dhchap_dhgroups = address->groups;
	return result;
}

void keys_drop(struct spdk_nvme_ctrlr_opts *opts)
{
	drop(&opts->dhchap_key);
	drop(&opts->dhchap_ctrlr_key);
	drop(&opts->tls_psk);
}
