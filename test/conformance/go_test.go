package conformance

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A system executes calls of the cases from Go: the kernel, or a posixshim.Process. Paths are relative to the directory of the case.
type system interface {
	enter(t *testing.T, dir string, owner int) // creates and enters the directory of a case
	become(t *testing.T, uid int)              // changes the user of later calls
	open(path string, flags int, mode uint32) (int, error)
	close(fd int) error
	dup(fd int) (int, error)
	read(fd int, p []byte) (int, error)
	write(fd int, p []byte) (int, error)
	pread(fd int, p []byte, off int64) (int, error)
	pwrite(fd int, p []byte, off int64) (int, error)
	seek(fd int, off int64, whence int) (int64, error)
	sync(fd int) error
	ftruncate(fd int, size int64) error
	flags(fd int) (int, error)
	setFlags(fd int, flags int) error
	truncate(path string, size int64) error
	stat(path string, follow bool) (unix.Stat_t, error)
	fstat(fd int) (unix.Stat_t, error)
	access(path string, mode int) error
	chmod(path string, mode uint32) error
	chown(path string, uid, gid int, follow bool) error
	utimens(path string, times *[2]unix.Timespec) error
	mkdir(path string, mode uint32) error
	rmdir(path string) error
	unlink(path string) error
	rename(from, to string, flags uint) error
	link(from, to string) error
	symlink(target, path string) error
	readlink(path string) (string, error)
	list(path string) ([]string, error) // names, with "/" or "@" behind directories or links
}

// A player executes the steps of cases on a system.
type player struct {
	t         *testing.T
	sys       system
	constants map[string]int64
	at        string // value of "@"
	regs      map[string]int
	opened    []int
	times     map[string]unix.Stat_t
	register  string // register for the result of the step
	words     []string
}

// play runs the cases and returns their results.
func (p *player) play(cases []testCase, mount string, self int) trace {
	tr := trace{}
	for i, c := range cases {
		dir := strconv.Itoa(i)
		p.at, p.regs, p.times = path.Join(mount, dir), map[string]int{}, map[string]unix.Stat_t{}
		owner := self
		if c.user && self == 0 {
			owner = nobody
		}
		p.sys.enter(p.t, dir, owner)
		for _, step := range c.steps {
			tr[c.name] = append(tr[c.name], strings.TrimRight(step+" = "+p.step(step), " "))
		}
		for _, fd := range p.opened {
			_ = p.sys.close(fd)
		}
		p.opened = nil
	}
	return tr
}

func (p *player) step(step string) string {
	p.words, p.register = strings.Fields(step), ""
	if register, verb, ok := strings.Cut(p.words[0], "="); ok {
		p.register, p.words[0] = register, verb
	}
	run := goVerbs[p.words[0]]
	p.words = p.words[1:]
	return run(p)
}

// goPlays reports whether a case can be run from Go: it has all verbs, and the case does not concern the C half: other directories,
// pointers, long paths.
func goPlays(c testCase) bool {
	for _, step := range c.steps {
		if goVerbs[verb(step)] == nil {
			return false
		}
		for _, w := range strings.Fields(step)[1:] {
			foreign := w == "BAD" || w == "NULL" && verb(step) != "utimens" || strings.HasPrefix(w, "/") || strings.Contains(w, "{=")
			if foreign {
				return false
			}
		}
	}
	return true
}

// ---- words ----

func (p *player) has(i int) bool { return i < len(p.words) }

// text returns word i with its escapes replaced.
func (p *player) text(i int) string {
	w := p.words[i]
	if w == `""` {
		return ""
	}
	var out strings.Builder
	if strings.HasPrefix(w, "@") {
		out.WriteString(p.at)
		w = w[1:]
	}
	for w != "" {
		switch {
		case w[0] == '{':
			count, rest, _ := strings.Cut(w[1:], ":")
			what, after, _ := strings.Cut(rest, "}")
			n, err := strconv.Atoi(count)
			require.NoError(p.t, err)
			out.WriteString(strings.Repeat(what, n))
			w = after
		case w[0] == '\\':
			out.WriteString(map[byte]string{'n': "\n", 's': " ", 't': "\t"}[w[1]])
			w = w[2:]
		default:
			out.WriteByte(w[0])
			w = w[1:]
		}
	}
	return out.String()
}

// number returns the value of word i: registers, constants and numbers joined by "|".
func (p *player) number(i int) int64 {
	var n int64
	for part := range strings.SplitSeq(p.words[i], "|") {
		fd, isFD := p.regs[part]
		c, isConstant := p.constants[part]
		switch {
		case isFD:
			n |= int64(fd)
		case isConstant:
			n |= c
		default:
			v, err := strconv.ParseInt(part, 0, 64)
			require.NoError(p.t, err)
			n |= v
		}
	}
	return n
}

func (p *player) fd() int { return int(p.number(0)) }

func (p *player) mode(i int, otherwise uint32) uint32 {
	if p.has(i) {
		return uint32(p.number(i))
	}
	return otherwise
}

// ---- results, as testdata/run.c prints them ----

func failed(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	if errno == unix.EOPNOTSUPP { // ErrnoName returns ENOTSUP
		return "-1 EOPNOTSUPP"
	}
	return "-1 " + unix.ErrnoName(errno)
}

func done(err error) string { return number(0, err) }

func number(n int64, err error) string {
	if err != nil {
		return failed(err)
	}
	return strconv.FormatInt(n, 10)
}

func escaped(data []byte) string {
	var out strings.Builder
	for i := 0; i < len(data); i++ {
		same := 1
		for i+same < len(data) && data[i+same] == data[i] {
			same++
		}
		if data[i] > ' ' && data[i] < 127 {
			out.WriteByte(data[i])
		} else {
			fmt.Fprintf(&out, "\\%02x", data[i])
		}
		if same > 4 {
			fmt.Fprintf(&out, "*%d", same)
			i += same - 1
		}
	}
	return out.String()
}

func bytesRead(data []byte, n int, err error) string {
	if err != nil {
		return failed(err)
	}
	return fmt.Sprintf("%d %s", n, escaped(data[:n]))
}

func (p *player) descriptor(fd int, err error) string {
	if err != nil {
		return failed(err)
	}
	if p.register != "" {
		p.regs[p.register] = fd
	}
	p.opened = append(p.opened, fd)
	return "fd"
}

func attributes(st unix.Stat_t, err error) string {
	if err != nil {
		return failed(err)
	}
	kind, size := "file", fmt.Sprintf(" size %d", st.Size)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		kind, size = "dir", ""
	case unix.S_IFLNK:
		kind = "link"
	}
	return fmt.Sprintf("%s %04o links %d%s owner %d:%d", kind, st.Mode&0o7777, st.Nlink, size, st.Uid, st.Gid)
}

func (p *player) fileFlags(fd int) string {
	flags, err := p.sys.flags(fd)
	if err != nil {
		return failed(err)
	}
	out := []string{"RDONLY", "WRONLY", "RDWR", "RDONLY"}[flags&unix.O_ACCMODE]
	for _, f := range []struct {
		name string
		bits int
	}{
		{"APPEND", unix.O_APPEND}, {"NONBLOCK", unix.O_NONBLOCK}, {"DIRECT", unix.O_DIRECT}, {"SYNC", unix.O_SYNC}, {"DSYNC", unix.O_DSYNC},
		{"PATH", unix.O_PATH}, {"NOATIME", unix.O_NOATIME}, {"DIRECTORY", unix.O_DIRECTORY}, {"NOFOLLOW", unix.O_NOFOLLOW},
	} {
		if flags&f.bits == f.bits {
			out += " " + f.name
		}
	}
	if flags&(unix.O_CREAT|unix.O_EXCL|unix.O_TRUNC|unix.O_CLOEXEC) != 0 {
		out += " once"
	}
	return out
}

// ---- times ----

func change(before, after unix.Timespec) string {
	switch a, b := time.Unix(before.Unix()), time.Unix(after.Unix()); {
	case b.Equal(a):
		return "kept"
	case b.After(a):
		return "later"
	}
	return "earlier"
}

// compareTimes returns which times have changed since the last such step.
func (p *player) compareTimes(name string, st unix.Stat_t, err error) string {
	if err != nil {
		return failed(err)
	}
	before, known := p.times[name]
	p.times[name] = st
	defer nextTick()
	if !known {
		return "noted"
	}
	return fmt.Sprintf("mtime %s ctime %s", change(before.Mtim, st.Mtim), change(before.Ctim, st.Ctim))
}

// nextTick waits until a change gets a later time than all before. File times are from the coarse clock, which ticks 100 to 1000 times a
// second. Since Linux 6.13 they are also never less than the newest time of the fine clock that any file has got. So the coarse clock has
// to pass the fine one.
func nextTick() {
	now := func(clock int32) time.Time {
		var ts unix.Timespec
		_ = unix.ClockGettime(clock, &ts)
		return time.Unix(ts.Unix())
	}
	for fine := now(unix.CLOCK_REALTIME); !now(unix.CLOCK_REALTIME_COARSE).After(fine); {
		time.Sleep(500 * time.Microsecond)
	}
}

func timesNow(st unix.Stat_t, err error) string {
	if err != nil {
		return failed(err)
	}
	now := func(ts unix.Timespec) int {
		if d := time.Since(time.Unix(ts.Unix())).Abs(); d < time.Minute {
			return 1
		}
		return 0
	}
	return fmt.Sprintf("atime %d mtime %d ctime %d", now(st.Atim), now(st.Mtim), now(st.Ctim))
}

func setTimes(st unix.Stat_t, err error) string {
	if err != nil {
		return failed(err)
	}
	return fmt.Sprintf("%d.%09d %d.%09d", st.Atim.Sec, st.Atim.Nsec, st.Mtim.Sec, st.Mtim.Nsec)
}

func (p *player) utimens() string {
	if p.words[1] == "NULL" {
		return done(p.sys.utimens(p.text(0), nil))
	}
	return done(p.sys.utimens(p.text(0), &[2]unix.Timespec{{Sec: p.number(1), Nsec: p.number(2)}, {Sec: p.number(3), Nsec: p.number(4)}}))
}

// ---- several calls in one ----

func (p *player) file() string {
	content := ""
	if p.has(1) {
		content = p.text(1)
	}
	fd, err := p.sys.open(p.text(0), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, p.mode(2, 0o644)&^0o22)
	if err == nil {
		_, err = p.sys.write(fd, []byte(content))
		err = errors.Join(err, p.sys.close(fd))
	}
	return done(err)
}

func (p *player) cat() string {
	data := make([]byte, 65536)
	fd, err := p.sys.open(p.text(0), unix.O_RDONLY, 0)
	if err != nil {
		return failed(err)
	}
	n, err := p.sys.read(fd, data)
	return bytesRead(data, n, errors.Join(err, p.sys.close(fd)))
}

func (p *player) list() string {
	names, err := p.sys.list(p.text(0))
	if err != nil {
		return failed(err)
	}
	slices.Sort(names)
	if len(names) > 20 {
		return fmt.Sprintf("%d entries", len(names))
	}
	return strings.Join(names, " ")
}

func (p *player) chain() string {
	from := "x"
	for i := range int(p.number(0)) {
		to := fmt.Sprintf("l%d", i+1)
		if err := p.sys.symlink(from, to); err != nil {
			return failed(err)
		}
		from = to
	}
	return "0"
}

func (p *player) readlink() string {
	target, err := p.sys.readlink(p.text(0))
	n := len(target)
	if err != nil {
		return failed(err)
	}
	if strings.HasPrefix(target, "/") {
		n = -1
	}
	if rest, ok := strings.CutPrefix(target, p.at); ok {
		return fmt.Sprintf("%d @%s", n, rest)
	}
	return fmt.Sprintf("%d %s", n, escaped([]byte(target)))
}
