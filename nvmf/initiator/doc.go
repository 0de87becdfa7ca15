// Package initiator has the parts that all initiators share, whatever their
// transport: defaults of options, and the rules by which they interpret Identify
// data, reservations and statuses.
//
//	options.go      defaults of options
//	identity.go     Identify data -> nvmf.Identity
//	queue.go        valid commands of a queue; connecting and reconnecting it
//	reservation.go  the commands behind nvmf.Reserver
//	auth.go         messages of failed authentications
//	retry.go        when a command with a transient status is sent again
//	cores.go        whether the machine is oversubscribed, for polling
//	pause.go        pauses between attempts, and a clock for keep-alives
//
// The types of the package may be used by one goroutine at a time.
package initiator
