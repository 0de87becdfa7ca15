package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
)

// FuzzSetting gives a setting arbitrary text. What is accepted is printed in a
// form that is accepted again and means the same: so the command, the
// environment, the application's processes and the record of the store agree.
func FuzzSetting(f *testing.F) {
	for i := range settings {
		f.Add(uint8(i), settings[i].Default())
	}
	for i, text := range []string{"..", "file:a;mem:1", "//x/../y/", "0.3K", "t", "292y", "8388608", "nqn.", "on", "1.5h", "error\x00", "-x", "9223372036854775807s"} {
		f.Add(uint8(i), text)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		hostile.Bounded(t, 4<<20+256*uint64(len(text)), 10*time.Second, func() {
			s := &settings[int(which)%len(settings)]
			c := Default()
			if err := c.Adopt(map[string]string{s.Name: text}); err != nil {
				require.NotEmpty(t, err.Error())
				return
			}
			printed := s.format(c)
			require.NotContains(t, printed, "\x00", "no environment holds it")
			d := Default()
			require.NoError(t, s.parse(d, printed), "%s: %q of %q", s.Name, printed, text)
			require.Equal(t, c, d, "%s: %q of %q", s.Name, printed, text)
			if s.Exported {
				e := Default()
				require.NoError(t, e.Adopt(c.Values()))
				require.Equal(t, c, e)
			}
			_, _ = c.Host(), strings.Join(c.Exports(), "\n")
		})
	})
}
