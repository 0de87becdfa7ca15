// Package initiator has the parts that initiators of all transports share: defaults of
// options, and the interpretation of Identify data, reservations and statuses.
//
//	options.go      defaults of options
//	identity.go     Identify data -> nvmf.Identity
//	queue.go        checks of commands; connecting and reconnecting a queue
//	reservation.go  the commands that implement nvmf.Reserver
//	auth.go         error messages of failed authentications
//	retry.go        when a command with a transient status is sent again
//	congestion.go   TCP congestion control
//	cores.go        whether the machine is oversubscribed, for polling
//	pause.go        pauses between attempts, and a clock for keep-alives
//
// The types of the package must not be used concurrently.
package initiator
