// Package initiator is what the initiators, which differ in how a command gets
// to a controller, have in common: defaults, and what they conclude from the
// answers.
//
//	options.go      defaults of options
//	identity.go     Identify -> nvmf.Identity, the same by whichever driver
//	queue.go        what a queue takes, how it is connected and reconnected
//	reservation.go  the way to the reservation that nvmf.Reserver promises
//	auth.go         what is said when an authentication fails
//	again.go        when a command with a transient status is sent again
//	cores.go        whether polling takes a core from somebody
//	pause.go        pauses between attempts, and a clock for keep-alives
//
// What is exported may be used by one goroutine at a time.
package initiator
