package slurm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// A Job is what Slurm says of one.
type Job struct {
	ID        uint32
	User      uint32
	Nodes     string // a list, as cn[1-4]
	Ranks     int
	Restarts  uint32
	Request   string // "" if it asks for nothing
	Over      bool   // and will not be started again
	Explained bool   // Slurm shows a text of ours with it
}

// A Queue is where jobs are asked for.
type Queue interface {
	// Job returns a job; ErrNoJob if Slurm does not know it any more.
	Job(ctx context.Context, id uint32) (Job, error)
	// Explain has Slurm show a text with the job; "": none any more.
	Explain(ctx context.Context, id uint32, text string) error
	// Hold has the job wait until somebody releases it.
	Hold(ctx context.Context, id uint32) error
}

// ErrNoJob says that Slurm has no such job: it is over, and long since.
var ErrNoJob = errors.New("there is no such job any more")

// Scontrol is the Queue that scontrol tells of.
type Scontrol struct{}

// Job asks scontrol.
func (Scontrol) Job(ctx context.Context, id uint32) (Job, error) {
	out, err := exec.CommandContext(ctx, "scontrol", "-o", "show", "job", strconv.FormatUint(uint64(id), 10)).CombinedOutput()
	if err != nil && strings.Contains(string(out), "Invalid job id") {
		return Job{}, fmt.Errorf("job %d: %w", id, ErrNoJob)
	}
	if err != nil {
		return Job{}, fmt.Errorf("scontrol show job %d: %w: %s", id, err, out)
	}
	return parseJob(id, string(out))
}

// Explain sets the job's AdminComment, which scontrol show job prints.
func (Scontrol) Explain(ctx context.Context, id uint32, text string) error {
	if text != "" {
		text = sign + text
	}
	return scontrol(ctx, "update", fmt.Sprintf("JobId=%d", id), "AdminComment="+text)
}

// sign begins our texts.
const sign = "nvmecr: "

// Hold queues a job that is about to start again, and holds it.
func (Scontrol) Hold(ctx context.Context, id uint32) error {
	return scontrol(ctx, "requeuehold", strconv.FormatUint(uint64(id), 10))
}

func scontrol(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "scontrol", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("scontrol %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// over are the states after which a job does not run again, unless it is requeued, which is a state of its own.
var over = regexp.MustCompile(`^(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT)\b`)

var (
	field   = regexp.MustCompile(`(?:^| )([A-Za-z/:]+)=(\S*)`)
	userOf  = regexp.MustCompile(`\((\d+)\)$`)
	gres    = regexp.MustCompile(`gres[:/]nvmf[:=](\d+)`)
	comment = regexp.MustCompile(`(?:^| )Comment=(nvmf:\S+)`)
)

// lineOf returns a job's line of scontrol -o show job. By the number of the first job of an array, or of a heterogeneous one, scontrol tells of all of them.
func lineOf(id uint32, out string) (line string, ok bool) {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, fmt.Sprintf("JobId=%d ", id)) {
			return strings.TrimSpace(line), true
		}
	}
	return "", false
}

// parseJob reads what scontrol -o show job prints.
func parseJob(id uint32, out string) (Job, error) {
	line, ok := lineOf(id, out)
	if !ok {
		return Job{}, fmt.Errorf("job %d: %w", id, ErrNoJob)
	}
	fields := make(map[string]string)
	for _, m := range field.FindAllStringSubmatch(line, -1) {
		if _, twice := fields[m[1]]; !twice {
			fields[m[1]] = m[2]
		}
	}
	user := userOf.FindStringSubmatch(fields["UserId"])
	if user == nil || fields["JobState"] == "" {
		return Job{}, fmt.Errorf("job %d: scontrol names no UserId and JobState: %q", id, line)
	}
	uid, err := strconv.ParseUint(user[1], 10, 32)
	if err != nil {
		return Job{}, fmt.Errorf("job %d: %w", id, err)
	}
	ranks, _ := strconv.Atoi(strings.Split(fields["NumTasks"], "-")[0]) // 0 where it is not known
	restarts, _ := strconv.ParseUint(fields["Restarts"], 10, 32)
	j := Job{ID: id, User: uint32(uid), Nodes: fields["NodeList"], Ranks: ranks, Restarts: uint32(restarts), Over: over.MatchString(fields["JobState"]),
		Explained: strings.Contains(line, " AdminComment="+sign)}
	if m := comment.FindStringSubmatch(line); m != nil {
		j.Request = m[1]
	} else if m := gres.FindStringSubmatch(fields["TresPerNode"]); m != nil {
		j.Request = "nvmf:" + m[1]
	}
	return j, nil
}
