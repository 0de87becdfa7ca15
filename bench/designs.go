package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A design is another library's way of taking checkpoints, as its authors have
// published it. Checkpoints go to memory of the node. A process copies every tenth
// checkpoint to the second level while the application continues. The benchmark's ranks
// and cp do the work of the library.
type design struct {
	local, second *side
	dir           string    // directory of second
	copying       *exec.Cmd // nil if no copy is running
}

// designRows returns applications with the designs of SCR, where a checkpoint counts
// when a partner has a copy of it, and of VELOC's asynchronous mode.
func (b *testbed) designRows(a *application, second string) (rows []levelRow, err error) {
	memory, err := b.env.memoryDir()
	if err == nil {
		memory, err = b.env.claims.in(memory)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"as SCR: node-local with a partner copy", "as VELOC: node-local"} {
		local, err := os.MkdirTemp(memory, "local-")
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(second, "flushed-")
		if err != nil {
			return nil, err
		}
		d := &design{local: designSide(a, name, local, ""), second: designSide(a, name, dir, ""), dir: dir}
		if len(rows) == 0 {
			d.local.partner = designSide(a, name, local, ".partner")
		}
		rows = append(rows, levelRow{name: name, first: d.local, tenth: d.local, design: d})
	}
	return rows, nil
}

// designSide returns a side with the application's ranks and a directory for their
// checkpoints.
func designSide(a *application, name, dir, suffix string) *side {
	return &side{name: name, group: a.group, memory: true, path: func(rank, k int) string {
		if k%everyLevel == everyLevel-1 { // the following checkpoints are written while this one is copied
			return filepath.Join(dir, fmt.Sprintf("tenth.%d", rank)) + suffix
		}
		return filepath.Join(dir, fmt.Sprintf("ckpt.%d.%d", rank, k%2)) + suffix
	}}
}

// flush starts to copy the k-th checkpoint to the second level, after the previous copy
// has ended.
func (d *design) flush(k int) error {
	if err := d.wait(); err != nil {
		return err
	}
	argv := []string{"cp", "-t", d.dir}
	for rank := range d.local.group.Size() {
		argv = append(argv, d.local.path(rank, k))
	}
	d.copying = exec.Command(argv[0], argv[1:]...)
	d.copying.Stderr = os.Stderr
	return d.copying.Start()
}

// wait waits until the copy has ended.
func (d *design) wait() error {
	if d.copying == nil {
		return nil
	}
	err := d.copying.Wait()
	d.copying = nil
	if err != nil {
		return fmt.Errorf("copying to the second level: %w", err)
	}
	return nil
}
