package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tlspsk"
)

// keyHashes are the values of --hash.
var keyHashes = map[int]dhchap.Hash{0: dhchap.NoHash, 256: dhchap.SHA256, 384: dhchap.SHA384, 512: dhchap.SHA512}

func newKeygen() *cobra.Command {
	var bits int
	var tls bool
	cmd := &cobra.Command{
		Use:   "keygen [flags]",
		Short: "Print a new key for authentication, or for TLS",
		Long: `Prints a new random key with which a host or a target authenticates, in the
format of the NVMe specification (DHHC-1:...): for --dhchap-secret and
--dhchap-ctrl-secret, for the key file of nvmecr target --dhchap-keys, for nvme-cli
and for SPDK. With --tls the key is for TLS: for --tls-psk and SPDK's target
(NVMeTLSkey-1:...).`,
		Example: `  (umask 077; nvmecr keygen > key)`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tls {
				if bits != 256 && bits != 384 {
					return cli.UsageError{Err: fmt.Errorf("--hash: %d is not 256 or 384, which keys for TLS have", bits)}
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), tlspsk.New(bits == 384).Reveal())
				return err
			}
			hash, ok := keyHashes[bits]
			if !ok {
				return cli.UsageError{Err: fmt.Errorf("--hash: %d is not 0, 256, 384 or 512", bits)}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), dhchap.NewSecret(hash).Reveal())
			return err
		},
	}
	cmd.Flags().IntVar(&bits, "hash", 256, "`BITS` of the key, and of the SHA-2 hash that transforms it at each end: 256, 384 or 512; 0 is a key of 256 bits without that hash [NVMECR_HASH]")
	cli.AddSwitch(cmd.Flags(), &tls, "tls", "", "a key for TLS [NVMECR_TLS]")
	return cmd
}
