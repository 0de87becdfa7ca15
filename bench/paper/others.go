package paper

import "nvmecr/bench/result"

// Results of other projects for a file that many ranks share. None of the publications
// has a ratio to one file for each rank.
var (
	PLFSWrite = Number{"PLFS, 512 ranks write one file in pieces of 16,864 bytes, beside the same without PLFS", 1370.0 / 240, result.Times,
		"5.7x: 1370 beside 240 MB/s, opens and closes included (0.09x with another setting of the forwarding layer: 21.9 MB/s)", "github.com/plfs/plfs-core/issues/49, Cielo"}
	PLFSRead = Number{"PLFS, 512 ranks read that file, beside the same without PLFS", 2330.0 / 1460, result.Times,
		"1.6x: 2330 beside 1460 MB/s", "github.com/plfs/plfs-core/issues/49, Cielo"}
	UnifyFSCheckpoint = Number{"UnifyFS, checkpoints of an application, beside a tuned configuration without it", 3, result.Times,
		"as much as 3x", "Brim et al., IPDPS 2023, abstract"}
)
