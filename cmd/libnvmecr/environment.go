package main

import "strings"

// environment returns os.Getenv for the strings of data, each ended by a NUL: the
// environment that the process was started with. Go would read it where it was
// then, and programs that show a title write over that. Of two the first counts.
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
