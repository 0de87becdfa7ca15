package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/provision"
	pools "nvmecr/nvmf/provision/embedded"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tlspsk"
)

const (
	// targetLBA is the logical block size of the target's namespaces.
	targetLBA = 4 * nvmf.KiB
	// targetGrace is how long commands in progress may take at the end.
	targetGrace = 2 * time.Second
)

type targetOptions struct {
	listen     []string
	nqn        string
	namespaces []string
	hosts      []string
	listed     bool // hosts was given, even if empty
	admin      string
	pool       string
	keys       string // file
	psks       string // file
	digests    string
	dhgroups   string
	anyHost    bool
	verbose    bool
	untilEOF   bool
}

func newTarget() *cobra.Command {
	o := &targetOptions{}
	cmd := &cobra.Command{
		Use:   "target [flags]",
		Short: "Serve namespaces over NVMe/TCP",
		Long: `Serves files, block devices or memory as NVMe namespaces to any NVMe/TCP host:
nvmecr, Linux (nvme connect), SPDK. It prints one line for each namespace and
address when it listens, in the form that --target takes, and runs until it is
interrupted. If it listens on all addresses (0.0.0.0, ::) it prints those of
this host's network interfaces.

A namespace is file:PATH, or file:PATH?size=SIZE, which creates the file if it
does not exist, or mem:SIZE, which is gone when the target ends. They are
numbered from 1 in the order given.

With --admin and --pool, namespaces are created and deleted while it runs: nvmecr admin creates
them, one for each job, and says which hosts may use them. The namespaces in a pool of files are
served again by the next target with that pool.

With --dhchap-keys hosts have to authenticate, with keys such
as nvmecr keygen prints; without, any host can claim any NQN. Without --allow-host and
keys it listens on the loopback interface only, unless --allow-any-host is given. With --tls-keys all
connections use TLS 1.3, with the host's key (nvmecr keygen --tls). On SIGHUP it
reads both files again, and cuts off the hosts whose key has changed; without a file
SIGHUP ends it as SIGTERM does.`,
		Example: `  nvmecr target --listen 0.0.0.0:4420 --nqn nqn.2014-08.org.example:scratch \
    --namespace file:/dev/nvme1n1 --allow-host nqn.2014-08.org.nvmexpress:uuid:...
  nvmecr target --listen 127.0.0.1:0 --namespace mem:1G
  nvmecr target --admin /run/nvmecr.sock --pool file:/srv/nvmecr`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.listed = cmd.Flags().Changed("allow-host")
			return o.serve(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.listen, "listen", nil, "`ADDRESS:PORT` to listen on, repeatable; port 0 lets the system choose; without one 0.0.0.0:4420, or 127.0.0.1:4420 where nothing says which hosts may connect [NVMECR_LISTEN]")
	f.StringVar(&o.nqn, "nqn", "nqn.2014-08.org.nvmecr:target", "`NQN` of the subsystem [NVMECR_NQN]")
	f.StringArrayVar(&o.namespaces, "namespace", nil, "`NAMESPACE` to serve, repeatable: file:PATH[?size=SIZE] or mem:SIZE [NVMECR_NAMESPACE]")
	f.StringSliceVar(&o.hosts, "allow-host", nil, "`NQN` of a host that may connect, repeatable [NVMECR_ALLOW_HOST]")
	cli.AddSwitch(f, &o.anyHost, "allow-any-host", "", "let any host connect that reaches the target [NVMECR_ALLOW_ANY_HOST]")
	f.StringVar(&o.admin, "admin", "", "`SOCKET` to listen on for nvmecr admin, of this user and root only [NVMECR_ADMIN]")
	f.StringVar(&o.pool, "pool", "", "`POOL` that --admin makes namespaces in: file:DIRECTORY or mem:SIZE [NVMECR_POOL]")
	f.StringVar(&o.keys, "dhchap-keys", "", "`FILE` with a line HOSTNQN HOSTKEY [TARGETKEY] for each host that may connect, and has to authenticate [NVMECR_DHCHAP_KEYS]")
	f.StringVar(&o.psks, "tls-keys", "", "`FILE` with a line HOSTNQN KEY for each host that may connect, which has to use TLS with that key [NVMECR_TLS_KEYS]")
	f.StringVar(&o.digests, "dhchap-digests", "", "`HASHES` that hosts may authenticate with, best first: sha512,sha384,sha256 [NVMECR_DHCHAP_DIGESTS]")
	f.StringVar(&o.dhgroups, "dhchap-dhgroups", "", "`GROUPS` that hosts may authenticate with, best first: ffdhe2048,ffdhe3072,ffdhe4096,null; also ffdhe6144 and ffdhe8192 [NVMECR_DHCHAP_DHGROUPS]")
	cli.AddSwitch(f, &o.verbose, "verbose", "v", "report on stderr which hosts connect and disconnect [NVMECR_VERBOSE]")
	cli.AddSwitch(f, &o.untilEOF, "until-eof", "", "end when standard input does")
	// For `nvmecr run`: the target ends with it.
	cobra.CheckErr(f.MarkHidden("until-eof"))
	return cmd
}

func (o *targetOptions) serve(stdin io.Reader, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return cli.UsageError{Err: err}
	}
	// Catch signals before the target prints anything: a reader of its output may send one then.
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	// Without key files SIGHUP ends the target, unless nohup ignores the signal.
	if o.keys == "" && o.psks == "" && !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	t, err := o.start(log)
	if err != nil {
		return err
	}
	if o.keys != "" || o.psks != "" {
		defer o.renewKeys(t, stderr)()
	}
	if o.untilEOF {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, stdin) // an error is an end, too
			cancel()
		}()
	}
	var jobs *pools.Target
	if o.admin != "" {
		jobs, err = o.openPool(t)
	}
	if err == nil {
		err = o.run(ctx, t, jobs, stdout, stderr)
	}
	grace, cancel := context.WithTimeout(context.Background(), targetGrace)
	defer cancel()
	err = errors.Join(err, t.Close(grace))
	if jobs != nil {
		err = errors.Join(err, jobs.Close())
	}
	return err
}

// openPool serves the namespaces in the pool.
func (o *targetOptions) openPool(t *target.Target) (*pools.Target, error) {
	pool, err := pools.OpenPool(o.pool)
	if err != nil {
		return nil, err
	}
	return pools.New(t, pool, o.nqn)
}

// run listens, and serves until ctx ends. jobs is nil without a pool.
func (o *targetOptions) run(ctx context.Context, t *target.Target, jobs *pools.Target, stdout, stderr io.Writer) error {
	if jobs == nil {
		_, err := o.announce(t, stdout)
		if err == nil {
			<-ctx.Done()
		}
		return err
	}
	l, err := pools.Listen(o.admin)
	if err != nil {
		return err
	}
	addresses, err := o.announce(t, stdout)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	jobs.SetAddresses(addresses)
	list, err := jobs.List(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	for _, n := range list {
		if n.State == provision.Damaged {
			fmt.Fprintf(stderr, "nvmecr: not served: %s\n", n.Problem)
		}
	}
	fmt.Fprintf(stderr, "nvmecr: %s in %s; nvmecr admin --provisioner nvmecr:%s\n", count(len(list), "namespace"), o.pool, o.admin)
	return pools.Serve(ctx, l, jobs)
}

func (o *targetOptions) check() error {
	switch {
	case o.admin == "" && o.pool != "":
		return errors.New("--pool without --admin SOCKET: nobody could make a namespace in it")
	case o.admin != "" && o.pool == "":
		return errors.New("--admin without --pool: say where namespaces come from, file:DIRECTORY or mem:SIZE")
	case o.admin == "" && len(o.namespaces) == 0:
		return errors.New("no --namespace to serve: give file:PATH or mem:SIZE; or --admin and --pool, to make namespaces later")
	}
	if o.admin != "" && len(o.nqn)+1+provision.MaxJob > 223 {
		return fmt.Errorf("--nqn: %q is too long to be followed by the name of a job: take one of %d characters or less", o.nqn, 222-provision.MaxJob)
	}
	if err := o.checkNames(); err != nil {
		return err
	}
	return o.checkReach()
}

// checkReach refuses to listen on addresses that other hosts reach without a list of permitted hosts. Namespaces of
// --admin have lists of their own.
func (o *targetOptions) checkReach() error {
	guarded := len(o.hosts) > 0 || o.keys != "" || o.psks != "" || o.anyHost || len(o.namespaces) == 0
	if len(o.listen) == 0 {
		o.listen = []string{"0.0.0.0:4420"}
		if !guarded {
			o.listen = []string{"127.0.0.1:4420"}
		}
	}
	for _, address := range o.listen {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("--listen %s: %w; it looks like 10.0.0.5:4420 or [::1]:4420", address, err)
		}
		if ip := net.ParseIP(host); !guarded && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("--listen %s: other hosts reach that, and nothing says which of them may connect: add --allow-host NQN, "+
				"--dhchap-keys FILE, --tls-keys FILE or --allow-any-host, or listen at 127.0.0.1", address)
		}
	}
	return nil
}

// discoveryNQN is the well-known NQN of discovery subsystems.
const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

func (o *targetOptions) checkNames() error {
	if o.nqn == "" || o.nqn == discoveryNQN {
		return fmt.Errorf("--nqn: %q cannot be the name of a subsystem with namespaces; choose one such as nqn.2014-08.org.example:scratch", o.nqn)
	}
	if err := config.CheckNQN(o.nqn); err != nil {
		return fmt.Errorf("--nqn: %w", err)
	}
	if o.listed && len(o.hosts) == 0 {
		return errors.New("--allow-host is empty: it has to name a host, as in nqn.2014-08.org.nvmexpress:uuid:...; does the file that it was read from exist?")
	}
	for _, h := range o.hosts {
		if err := config.CheckNQN(h); err != nil || h == "" {
			return fmt.Errorf("--allow-host: %q is not an NQN, nqn.2014-08.org.nvmexpress:uuid:... or such, of a host", h)
		}
	}
	return nil
}

// start creates the target and opens its namespaces. The target does not listen yet.
func (o *targetOptions) start(log *slog.Logger) (*target.Target, error) {
	c := target.Config{Log: log}
	var err error
	if c.Auth.Hashes, err = dhchap.ParseHashes(o.digests); err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--dhchap-digests: %w", err)}
	}
	if c.Auth.Groups, err = dhchap.ParseGroups(o.dhgroups); err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--dhchap-dhgroups: %w", err)}
	}
	if o.keys != "" {
		if c.Keys, err = o.readKeys(); err != nil {
			return nil, fmt.Errorf("--dhchap-keys: %w", err)
		}
	}
	if o.psks != "" {
		if c.PSKs, err = o.readPSKs(); err != nil {
			return nil, fmt.Errorf("--tls-keys: %w", err)
		}
	}
	if len(o.namespaces) == 0 {
		return target.New(c)
	}
	sub := target.Subsystem{NQN: o.nqn, Hosts: o.hosts}
	for _, name := range o.namespaces {
		b, err := openBacking(name)
		if err != nil {
			return nil, errors.Join(err, closeBackings(sub))
		}
		sub.Namespaces = append(sub.Namespaces, target.Namespace{Backing: b})
	}
	c.Subsystems = []target.Subsystem{sub}
	t, err := target.New(c)
	if err != nil {
		return nil, errors.Join(err, closeBackings(sub))
	}
	return t, nil
}

// readKeys reads the file of DH-HMAC-CHAP keys.
func (o *targetOptions) readKeys() (map[string]dhchap.Keys, error) {
	keys, err := config.ReadKeys(o.keys)
	return keys, errors.Join(err, checkAllHave(keys, o.keys, o.hosts))
}

// readPSKs reads the file of TLS keys.
func (o *targetOptions) readPSKs() (map[string]tlspsk.Key, error) {
	keys, err := config.ReadPSKs(o.psks)
	return keys, errors.Join(err, checkAllHave(keys, o.psks, o.hosts))
}

// checkAllHave returns an error if an allowed host has no key, since it could not connect.
func checkAllHave[K any](keys map[string]K, file string, hosts []string) error {
	for _, h := range hosts {
		if _, ok := keys[h]; !ok && keys != nil {
			return fmt.Errorf("%s has no line for host %s, which --allow-host names", file, h)
		}
	}
	return nil
}

// renewKeys reads the key files again on each SIGHUP, until stop is called. An invalid file changes nothing.
func (o *targetOptions) renewKeys(t *target.Target, stderr io.Writer) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			if o.keys != "" {
				renew(stderr, "--dhchap-keys", o.readKeys, t.SetKeys)
			}
			if o.psks != "" {
				renew(stderr, "--tls-keys", o.readPSKs, t.SetPSKs)
			}
		}
	}()
	return func() { signal.Stop(hangups); close(hangups); <-done }
}

// renew reads a key file again and passes the keys to the target.
func renew[K any](stderr io.Writer, flag string, read func() (map[string]K, error), set func(map[string]K) error) {
	keys, err := read()
	if err == nil {
		err = set(keys)
	}
	if err != nil && !errors.Is(err, target.ErrExecuting) {
		fmt.Fprintf(stderr, "nvmecr: %s: the keys stay as they were: %v\n", flag, err)
		return
	}
	fmt.Fprintf(stderr, "nvmecr: %s: read again, keys of %s\n", flag, count(len(keys), "host"))
	if err != nil {
		fmt.Fprintf(stderr, "nvmecr: %s: %v\n", flag, err)
	}
}

func closeBackings(s target.Subsystem) error {
	var errs []error
	for _, n := range s.Namespaces {
		errs = append(errs, n.Backing.Close())
	}
	return errors.Join(errs...)
}

// openBacking opens the backing device of file:PATH[?size=SIZE] or mem:SIZE.
func openBacking(name string) (target.Backing, error) {
	plain, size, create := strings.Cut(name, "?size=")
	if i := strings.LastIndexByte(plain, '?'); i >= 0 && strings.Contains(plain[i:], "=") {
		return nil, cli.UsageError{Err: fmt.Errorf("namespace %q: %q is not ?size=SIZE", name, plain[i:])}
	}
	id, err := nvmf.ParseTransportID(plain)
	if err != nil {
		return nil, cli.UsageError{Err: err}
	}
	switch {
	case id.Transport == nvmf.Mem:
		return target.NewMemory(id.Size, targetLBA)
	case id.Transport != nvmf.File:
		return nil, cli.UsageError{Err: fmt.Errorf("namespace %q: a target serves file:PATH and mem:SIZE", name)}
	case !create:
		return target.OpenFile(id.Address, targetLBA)
	}
	want, err := nvmf.ParseSize(size)
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("namespace %q: %w", name, err)}
	}
	info, err := os.Stat(id.Address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := createImage(id.Address, want); err != nil {
			return nil, err
		}
	case err == nil && info.Mode().IsRegular() && nvmf.Bytes(info.Size()) != want:
		return nil, fmt.Errorf("namespace %q: the file exists and has %s; leave ?size= out, or change the file", name, nvmf.Bytes(info.Size()))
	}
	return target.OpenFile(id.Address, targetLBA)
}

// createImage creates a sparse file of that size.
func createImage(path string, size nvmf.Bytes) error {
	d, err := filedev.Create(path, size, filedev.Options{LBASize: targetLBA})
	if err != nil {
		return err
	}
	return d.Close()
}

// announce listens, prints the targets, and returns the addresses.
func (o *targetOptions) announce(t *target.Target, w io.Writer) ([]nvmf.TransportID, error) {
	var addresses []nvmf.TransportID
	for _, address := range o.listen {
		bound, err := t.Listen(address)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: %w; choose another --listen ADDRESS:PORT", address, err)
		}
		host, port, err := net.SplitHostPort(bound.String())
		if err != nil {
			return nil, err
		}
		for _, host := range reachableAt(host) {
			at := addressOf(host, port)
			if err := o.announceAt(at, w); err != nil {
				return nil, err
			}
			addresses = append(addresses, at)
		}
	}
	return addresses, nil
}

// addressOf returns the address of a target, without a subsystem.
func addressOf(host, port string) nvmf.TransportID {
	family := "IPv4"
	if strings.Contains(host, ":") {
		family = "IPv6"
	}
	return nvmf.TransportID{Transport: nvmf.TCP, Family: family, Address: host, Service: port}
}

func (o *targetOptions) announceAt(id nvmf.TransportID, w io.Writer) error {
	for i := range o.namespaces {
		id.SubNQN, id.NSID = o.nqn, uint32(i+1)
		if _, err := fmt.Fprintln(w, id); err != nil {
			return err
		}
	}
	return nil
}

// reachableAt returns the addresses at which other hosts reach a listener on host. For the unspecified address these
// are the addresses of the network interfaces.
func reachableAt(host string) []string {
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsUnspecified() {
		return []string{host}
	}
	only4 := ip.To4() != nil
	var found []string
	addrs, _ := net.InterfaceAddrs() // on errors only the loopback address is left
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if ok && n.IP.IsGlobalUnicast() && (!only4 || n.IP.To4() != nil) {
			found = append(found, n.IP.String())
		}
	}
	if len(found) == 0 && only4 {
		return []string{"127.0.0.1"}
	}
	if len(found) == 0 {
		return []string{"::1"}
	}
	return found
}
