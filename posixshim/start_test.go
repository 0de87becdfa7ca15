package posixshim_test

import (
	"debug/elf"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a program pays that does nothing with the preloaded library is pages that
// are touched and symbols that are looked up when it is loaded. Neither shows
// anywhere else than in time.
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

	var segments []*elf.Prog
	for _, p := range file.Progs {
		if p.Type == elf.PT_LOAD {
			segments = append(segments, p)
		}
	}
	require.Len(t, segments, 2)
	page := segments[1].Align
	assert.Zero(t, segments[1].Vaddr%page, "variables begin with a page")
	assert.LessOrEqual(t, segments[1].Filesz, page, "bytes of what is written to at the start, which is one page")
	assert.Less(t, at(t, file, "probe_bad"), uint64(64<<10), "code of the start and of paths is among the first pages")
	assert.Less(t, at(t, file, "nv_real"), segments[1].Vaddr+page, "the table of functions is in the first page and the second")
}

// lookedUp returns the symbols that are looked up when the library is loaded.
func lookedUp(t *testing.T, file *elf.File) (names []string) {
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	section := file.Section(".rela.dyn")
	require.NotNil(t, section)
	data, err := section.Data()
	require.NoError(t, err)
	const entry = 24 // where, what, and what is added
	for ; len(data) >= entry; data = data[entry:] {
		if symbol := file.ByteOrder.Uint64(data[8:]) >> 32; symbol != 0 {
			names = append(names, symbols[symbol-1].Name)
		}
	}
	return names
}

// at returns where a symbol of the library's own is.
func at(t *testing.T, file *elf.File, name string) uint64 {
	symbols, err := file.Symbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Name == name {
			return s.Value
		}
	}
	require.Fail(t, "there is no "+name)
	return 0
}
