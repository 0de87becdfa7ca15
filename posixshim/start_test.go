//go:build !race

package posixshim_test

import (
	"debug/elf"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStart checks the costs of the preloaded library for a program that does not use the mount: the pages that are
// touched when the library is loaded, and the symbols that are looked up. Otherwise only a measurement of time would
// show an increase.
func TestStart(t *testing.T) {
	dir, err := libraries()
	require.NoError(t, err)
	file, err := elf.Open(filepath.Join(dir, "libnvmecr.so"))
	require.NoError(t, err)
	defer file.Close()

	needed, err := file.ImportedLibraries()
	require.NoError(t, err)
	assert.Equal(t, []string{"libc.so.6"}, needed, "libraries that are loaded with it")

	assert.Subset(t, []string{"__register_atfork", "environ"}, lookedUp(t, file),
		"symbols of other libraries whose address is kept; a function that calls it needs none")

	segments := map[elf.ProgType]int{}
	for _, p := range file.Progs {
		segments[p.Type]++
	}
	assert.Equal(t, 2, segments[elf.PT_LOAD], "pieces that are mapped")
	assert.Equal(t, 1, segments[elf.PT_GNU_RELRO], "what the linker has written to is read-only then")
	flags, err := file.DynValue(elf.DT_FLAGS)
	require.NoError(t, err)
	assert.Contains(t, flags, uint64(elf.DF_BIND_NOW|elf.DF_STATIC_TLS), "all functions are bound by then")
	assert.Zero(t, file.Section(".got.plt"), "a table of functions that could be written to")
}

// lookedUp returns the symbols that the dynamic linker looks up when the library is loaded.
func lookedUp(t *testing.T, file *elf.File) (names []string) {
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	section := file.Section(".rela.dyn")
	require.NotNil(t, section)
	data, err := section.Data()
	require.NoError(t, err)
	const entry = 24 // Elf64_Rela: offset, info, addend
	for ; len(data) >= entry; data = data[entry:] {
		if symbol := file.ByteOrder.Uint64(data[8:]) >> 32; symbol != 0 {
			names = append(names, symbols[symbol-1].Name)
		}
	}
	return names
}
