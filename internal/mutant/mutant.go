// Package mutant is the list of deliberate faults by which the crash and fault
// tests are tested: with one of them switched on, some test must fail.
//
// Built with the tag "mutants" the fault named by NVMECR_MUTANT is on. Without
// the tag [On] is false at compile time, and nothing is left of the faults.
// On may be called concurrently.
//
// test/mutants runs the tests against each fault; `make mutants` prints which
// test caught which.
package mutant

// A Fault is the name of a deliberate fault.
type Fault string

// The faults. Each is one line in the affected code.
const (
	InPlace        Fault = "overwrite-in-place"
	OneSlot        Fault = "one-log-slot"
	NoVerify       Fault = "no-verification-of-pending-data"
	NoPending      Fault = "pending-data-not-listed"
	NoSeal         Fault = "no-seal"
	SameGeneration Fault = "seal-in-the-old-generation"
	EarlyReuse     Fault = "reuse-before-the-free-is-durable"
	GrowPast       Fault = "grow-a-record-past-a-truncate"
	NoHeaderFlush  Fault = "no-flush-before-the-header-switch"
	EarlyAck       Fault = "acknowledge-before-the-log-record"
	NoFlush        Fault = "fsync-does-not-flush"
	NoMark         Fault = "fsync-not-on-record"
	NoMirror       Fault = "fsync-leaves-one-slot"
	NoCopy         Fault = "no-copy-at-the-end-of-a-page"
	SameArea       Fault = "state-over-the-current-state"
	EarlyRelease   Fault = "log-pages-free-before-the-header"
	NoRetire       Fault = "reuse-what-a-late-command-may-hit"
	NoTailCheck    Fault = "no-check-after-a-reconnection"
	NoClaimCheck   Fault = "claim-not-checked-after-a-reconnection"
	NoReadCheck    Fault = "reads-not-verified"
	NoParity       Fault = "state-not-repaired"
	NoMore         Fault = "large-writes-in-parts"
	NoFreeze       Fault = "append-in-place-after-a-truncate"
	NoSupersede    Fault = "what-was-refused-left-on-the-media"
)

// All lists the faults with their effects.
var All = []struct {
	Fault Fault
	Text  string
}{
	{InPlace, "an overwrite goes over the bytes that are there"},
	{OneSlot, "both slots of a log page are one"},
	{NoVerify, "recovery takes the newest image without looking at its data"},
	{NoPending, "images do not list the data in flight with them"},
	{NoSeal, "recovery leaves on the media what it rejected"},
	{SameGeneration, "recovery continues in the generation it found"},
	{EarlyReuse, "freed hugeblocks are used again before a flush"},
	{GrowPast, "a record grows although a truncate or rename came after it"},
	{NoHeaderFlush, "the state header is written without a flush before it"},
	{EarlyAck, "an operation returns without its log image on the media"},
	{NoFlush, "fsync and close do not flush the device"},
	{NoMark, "nothing on the media says what a flush has made durable"},
	{NoMirror, "fsync and close leave the newest records in one slot"},
	{NoCopy, "the final image of a page stays in one slot"},
	{SameArea, "a state checkpoint goes over the one before it"},
	{EarlyRelease, "log pages are used again before the header names the new state"},
	{NoRetire, "hugeblocks are used again although a lost command may land there"},
	{NoTailCheck, "after a reconnection nothing is compared"},
	{NoClaimCheck, "a writer that was cut off does not look whose the partition is"},
	{NoReadCheck, "reads return what comes"},
	{NoParity, "a damaged block of a state is not repaired"},
	{NoMore, "a crash leaves a part of a write of several log groups"},
	{NoFreeze, "a unit that was cut is appended to in place"},
	{NoSupersede, "an operation that failed may be found done by the next mount"},
}
