// Package conformance compares the mount with a local file system, call by
// call.
//
// cases.txt is the table: one line for each error condition and each flag of
// each call, as steps in a directory of its own. Each case is made on a local
// file system and under the mount, and what every step came to (the result,
// errno, the data, offsets, sizes, modes, link counts, which times have
// changed) has to be the same line by line, but for what differences.txt lists
// with its reason. An entry there that is no longer true fails as well.
//
// The cases are made
//
//   - from C, by one program (testdata/*.c) that calls the C library as an
//     application does, natively and under the preload: with relative paths and
//     the plain names of calls; with absolute paths and the names that end in
//     64; relative to the descriptor of a directory and with vectors; and
//     compiled with the fortified headers, which call __read_chk and the like.
//     Cases for a user who is not root run in a process of that user.
//   - from Go: a Go program makes raw system calls, which no preload can see,
//     so natively with these, and on the other side straight on a
//     posixshim.Process, the half of the shim that is Go. It has no streams,
//     working directory or mappings, so it makes those cases for which it has
//     all the verbs.
//
// Besides, cases are made up at random, for two ranks and a process without one in turn (random_test.go).
//
// The local file system is that of the temporary directory (TMPDIR); the list
// of differences holds for ext4, xfs and tmpfs: where these differ from each
// other, an entry names the one it is about.
package conformance
