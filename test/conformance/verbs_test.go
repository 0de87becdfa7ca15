package conformance

import "golang.org/x/sys/unix"

// umask is the umask of the cases.
const umask = 0o022

// goVerbs are the verbs of cases.txt that are implemented in Go.
var goVerbs map[string]func(p *player) string

func init() {
	goVerbs = map[string]func(p *player) string{
		"become": func(p *player) string { p.sys.become(p.t, p.fd()); return "done" },
		"open": func(p *player) string {
			return p.descriptor(p.sys.open(p.text(0), int(p.number(1)), p.mode(2, 0o644)&^umask))
		},
		"creat": func(p *player) string {
			return p.descriptor(p.sys.open(p.text(0), unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, p.mode(1, 0o644)&^umask))
		},
		"close": func(p *player) string { return done(p.sys.close(p.fd())) },
		"dup":   func(p *player) string { return p.descriptor(p.sys.dup(p.fd())) },
		"read": func(p *player) string {
			data := make([]byte, p.number(1))
			n, err := p.sys.read(p.fd(), data)
			return bytesRead(data, n, err)
		},
		"pread": func(p *player) string {
			data := make([]byte, p.number(1))
			n, err := p.sys.pread(p.fd(), data, p.number(2))
			return bytesRead(data, n, err)
		},
		"write": func(p *player) string {
			n, err := p.sys.write(p.fd(), []byte(p.text(1)))
			return number(int64(n), err)
		},
		"pwrite": func(p *player) string {
			n, err := p.sys.pwrite(p.fd(), []byte(p.text(1)), p.number(2))
			return number(int64(n), err)
		},
		"lseek":     func(p *player) string { return number(p.sys.seek(p.fd(), p.number(1), int(p.number(2)))) },
		"fsync":     func(p *player) string { return done(p.sys.sync(p.fd())) },
		"ftruncate": func(p *player) string { return done(p.sys.ftruncate(p.fd(), p.number(1))) },
		"getfl":     func(p *player) string { return p.fileFlags(p.fd()) },
		"truncate":  func(p *player) string { return done(p.sys.truncate(p.text(0), p.number(1))) },
		"stat":      func(p *player) string { return attributes(p.sys.stat(p.text(0), true)) },
		"lstat":     func(p *player) string { return attributes(p.sys.stat(p.text(0), false)) },
		"fstat":     func(p *player) string { return attributes(p.sys.fstat(p.fd())) },
		"access":    func(p *player) string { return done(p.sys.access(p.text(0), int(p.number(1)))) },
		"chmod":     func(p *player) string { return done(p.sys.chmod(p.text(0), uint32(p.number(1)))) },
		"chown": func(p *player) string {
			return done(p.sys.chown(p.text(0), int(p.number(1)), int(p.number(2)), true))
		},
		"lchown": func(p *player) string {
			return done(p.sys.chown(p.text(0), int(p.number(1)), int(p.number(2)), false))
		},
		"utimens": (*player).utimens,
		"settimes": func(p *player) string {
			return setTimes(p.sys.stat(p.text(0), false))
		},
		"timesnow": func(p *player) string { return timesNow(p.sys.stat(p.text(0), false)) },
		"times": func(p *player) string {
			st, err := p.sys.stat(p.text(0), false)
			return p.compareTimes(p.text(0), st, err)
		},
		"ftimes": func(p *player) string {
			st, err := p.sys.fstat(p.fd())
			return p.compareTimes(p.words[0], st, err)
		},
		"mkdir":    func(p *player) string { return done(p.sys.mkdir(p.text(0), p.mode(1, 0o755)&^umask)) },
		"rmdir":    func(p *player) string { return done(p.sys.rmdir(p.text(0))) },
		"unlink":   func(p *player) string { return done(p.sys.unlink(p.text(0))) },
		"rename":   func(p *player) string { return done(p.sys.rename(p.text(0), p.text(1), 0)) },
		"link":     func(p *player) string { return done(p.sys.link(p.text(0), p.text(1))) },
		"symlink":  func(p *player) string { return done(p.sys.symlink(p.text(0), p.text(1))) },
		"readlink": (*player).readlink,
		"ls":       (*player).list,
		"file":     (*player).file,
		"cat":      (*player).cat,
		"chain":    (*player).chain,
	}
}
