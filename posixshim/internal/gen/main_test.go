package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	require.NoError(t, run("../../..", true))
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown word", "cal int f(fd) = 0", `calls.txt:1: unknown word "cal"`},
		{"no expression", "group G\ncall int f(fd)", "calls.txt:2: not of the form call TYPE NAME(PARAMETERS) = EXPRESSION"},
		{"twice", "group G\ncall int f(fd) = 0\ncall int g(fd) = 0 ; aka f", "calls.txt:3: f is there twice"},
		{"unknown attribute", "group G\ncall int f(fd) = 0 ; slow", `calls.txt:2: unknown attribute "slow"`},
		{"unknown type", "runtime f(float x) : x", `calls.txt:1: f: unknown type "float"`},
		{"no reason", "skip f", "calls.txt:1: not of the form skip NAME... : REASON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.text)
			assert.EqualError(t, err, c.want)
		})
	}
	t.Run("call", func(t *testing.T) {
		got, err := parseCall("call char *f(at, path, path, int (*cmp)(int a, int b), const int v[2], ...mode_t mode) = g(&at, v) ; aka f64 ; signal")
		require.NoError(t, err)
		assert.Equal(t, &call{
			ret: "char *", name: "f", expr: "g(&at, v)", aka: []string{"f64"}, signal: true,
			params: []param{
				{kind: "at", decl: "int dirfd", name: "dirfd"},
				{kind: "path", decl: "const char *path", name: "path"},
				{kind: "path", decl: "const char *path2", name: "path2"},
				{decl: "int (*cmp)(int a, int b)", name: "cmp"},
				{decl: "const int v[2]", name: "v"},
				{decl: "mode_t mode", name: "mode", variadic: true},
			},
		}, got)
	})
}
