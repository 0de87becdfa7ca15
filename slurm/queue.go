package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// A Job is Slurm's description of a job.
type Job struct {
	ID       uint32
	Own      string // its id for scontrol; the plain id of the first job of an array or a heterogeneous job would address all of its jobs
	Whole    string // the id of the jobs that are requeued together: all of a heterogeneous job
	User     uint32
	Nodes    string // host list, as cn[1-4]
	Ranks    int
	Restarts uint32
	Request  string // request in its GRES; "" if there is none
	Over     bool   // ended, and will not start again
}

// A Queue is the interface to Slurm's jobs.
type Queue interface {
	// Job returns a job; ErrNoJob if Slurm no longer knows it.
	Job(ctx context.Context, id uint32) (Job, error)
	// Explain sets the text that Slurm shows with the job; "" removes a text that nvmecr has set.
	Explain(ctx context.Context, job Job, text string) error
	// Hold makes the job wait until a user releases it.
	Hold(ctx context.Context, job Job) error
}

// ErrNoJob means that Slurm no longer knows the job, which ended long ago.
var ErrNoJob = errors.New("the job is no longer known to Slurm")

// Client is the Queue that calls squeue and scontrol.
type Client struct{}

// squeueFields are the fields that squeue prints. Users cannot set the text of any of them, as they can with the name and
// the comment, so none can imitate another field.
var squeueFields = []string{"JobID", "UserID", "State", "NodeList", "NumTasks", "RestartCnt", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "tres-per-node"}

// Job returns the job that squeue lists. Only an error of squeue says that there is no such job: an empty list may have another cause.
func (Client) Job(ctx context.Context, id uint32) (Job, error) {
	format := strings.Join(squeueFields, ":|,") + ":|"
	out, err := exec.CommandContext(ctx, "squeue", "--noheader", "--local", "--all", "--states=all", "--jobs="+strconv.FormatUint(uint64(id), 10), "--Format="+format).CombinedOutput()
	if err != nil && strings.Contains(string(out), "Invalid job id") {
		return Job{}, fmt.Errorf("job %d: %w", id, ErrNoJob)
	}
	if err != nil {
		return Job{}, fmt.Errorf("squeue --jobs=%d: %w: %s", id, err, strings.TrimSpace(string(out)))
	}
	return parseJob(id, string(out))
}

// Explain sets the job's AdminComment, which scontrol show job prints.
func (Client) Explain(ctx context.Context, job Job, text string) error {
	if text != "" {
		return scontrol(ctx, "update", "JobId="+job.Own, "AdminComment="+messagePrefix+text)
	}
	out, err := exec.CommandContext(ctx, "scontrol", "-o", "show", "job", job.Own).CombinedOutput()
	if err != nil {
		return fmt.Errorf("scontrol show job %s: %w: %s", job.Own, err, strings.TrimSpace(string(out)))
	}
	if !strings.Contains(string(out), " AdminComment="+messagePrefix) {
		return nil
	}
	return scontrol(ctx, "update", "JobId="+job.Own, "AdminComment=")
}

// messagePrefix is the prefix of nvmecr's texts.
const messagePrefix = "nvmecr: "

// Hold requeues a job that is about to start, and holds it.
func (Client) Hold(ctx context.Context, job Job) error {
	return scontrol(ctx, "requeuehold", job.Whole)
}

func scontrol(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "scontrol", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("scontrol %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// over are the states after which a job does not run again, unless it is requeued (REQUEUED is a state of its own).
var over = regexp.MustCompile(`^(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT)\b`)

var gres = regexp.MustCompile(`(?:^|,)gres[:/]nvmf(?:[:=](\d+))?(?:,|$)`)

// fieldsOf returns the fields of a job in the output of squeue. For the first job of an array, or of a heterogeneous
// job, squeue prints a line for each job.
func fieldsOf(id uint32, out string) (fields map[string]string, ok bool) {
	for line := range strings.Lines(out) {
		values := strings.Split(strings.TrimSpace(line), "|")
		if len(values) < len(squeueFields) || values[0] != strconv.FormatUint(uint64(id), 10) {
			continue
		}
		fields = make(map[string]string)
		for i, name := range squeueFields {
			if values[i] != "N/A" {
				fields[name] = values[i]
			}
		}
		return fields, true
	}
	return nil, false
}

// jobIDs returns the ids of a job: see Job.Own and Job.Whole.
func jobIDs(id uint32, fields map[string]string) (own, whole string) {
	if fields["ArrayTaskID"] != "" {
		own = fields["ArrayJobID"] + "_" + fields["ArrayTaskID"]
		return own, own
	}
	if fields["HetJobID"] != "" {
		return fields["HetJobID"] + "+" + fields["HetJobOffset"], fields["HetJobID"]
	}
	own = strconv.FormatUint(uint64(id), 10)
	return own, own
}

// parseJob parses what squeue prints.
func parseJob(id uint32, out string) (Job, error) {
	fields, ok := fieldsOf(id, out)
	if !ok {
		return Job{}, fmt.Errorf("job %d: squeue prints %q", id, out)
	}
	uid, err := strconv.ParseUint(fields["UserID"], 10, 32)
	if err != nil {
		return Job{}, fmt.Errorf("job %d: its user: %w", id, err)
	}
	ranks, _ := strconv.Atoi(fields["NumTasks"]) // 0 if unknown
	restarts, _ := strconv.ParseUint(fields["RestartCnt"], 10, 32)
	j := Job{ID: id, User: uint32(uid), Nodes: fields["NodeList"], Ranks: ranks, Restarts: uint32(restarts), Over: over.MatchString(fields["State"])}
	j.Own, j.Whole = jobIDs(id, fields)
	if m := gres.FindStringSubmatch(fields["tres-per-node"]); m != nil {
		j.Request = "nvmf:" + cmp.Or(m[1], "1")
	}
	return j, nil
}

// InComment returns the request that a job's comment begins with; "" if it begins with none.
func InComment(comment string) string {
	if words := strings.Fields(comment); len(words) > 0 && strings.HasPrefix(words[0], "nvmf:") {
		return words[0]
	}
	return ""
}
