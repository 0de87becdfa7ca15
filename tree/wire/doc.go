// Package wire is what a process of a job and the index of the job's tree say to each other:
// the messages, and both ends of a connection.
//
// The process asks, the index answers, one request at a time on a connection. Leave has no answer. docs/dev/tree.md draws
// the header and says what each operation does. A body is its fields in the order of the method
// "fields" of its type, little-endian, without gaps:
//
//   - a string is a 16-bit length and bytes; data is a 32-bit length and bytes, or only the length where both ends share memory (NewConn)
//   - a list is a 32-bit count and its elements
//   - a truth is a byte, 0 or 1; a time is nanoseconds since 1970 in 64 bits
//
// An answer begins with the shards that the client is to remove, a list; then comes the answer's own body, or, where the
// errno of the header is not 0, the text of the error and the path of a microfs.EscapeError, two strings.
//
// # Concurrency
//
// A Conn may be used by any number of threads, whose calls take turns. A Peer is for one.
//
// # Files
//
//	header.go  the header       codec.go   encoding and decoding
//	ops.go     operations       bodies.go  bodies of requests      answers.go  bodies of answers
//	types.go   Shard, Segment   errors.go  errors across the connection
//	locks.go   sets of locks    retry.go   what can be asked again
//	conn.go    the client's end peer.go    the index's end
package wire
