package main

import "strings"

// environment returns a function like os.Getenv for the strings of data, each ended by a NUL: the environment with which the
// process was started. Go would read the memory in which the environment was then, and programs that change their title overwrite
// that (setproctitle). If a name occurs twice, the first value counts.
func environment(data []byte) func(name string) string {
	values := make(map[string]string)
	for _, text := range strings.Split(string(data), "\x00") {
		name, value, _ := strings.Cut(text, "=")
		if _, ok := values[name]; !ok {
			values[name] = value
		}
	}
	return func(name string) string { return values[name] }
}
