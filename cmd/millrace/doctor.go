package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/broker"
)

// What a check can find.
const (
	checkOK      = "ok"
	checkWarning = "warning"
	checkFailed  = "failed"
	checkSkipped = "skipped"
)

// finding is the outcome of one check.
type finding struct {
	Check   string `json:"check" doc:"what was looked at"`
	Status  string `json:"status" doc:"ok, warning, failed or skipped"`
	Message string `json:"message" doc:"what was found"`
	Fix     string `json:"fix" doc:"what to do; empty when nothing need be done"`
}

// examination collects findings. What it asks the machine is in fields, so that tests can make a sick one.
type examination struct {
	e        *env
	findings []finding

	openFiles func() (uint64, error)                        // descriptors this process may have; 0 means the system has no limit
	usage     func(dir string) (free, total int64, e error) // of the file system that holds dir
	euid      int
	now       func() time.Time
	httpAt    string // --http: where health is asked, instead of where the brokers say
}

func (x *examination) add(check, status, message, fix string) {
	x.findings = append(x.findings, finding{check, status, message, fix})
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check this machine, a broker's configuration and the cluster; exit code 5 when something is wrong",
		Description: "Looks at descriptors, the configuration (--config, --set, environment), the data directory and ports of this machine,\n" +
			"then asks the cluster: can its brokers be reached from here, do they say they are ready, is a partition offline.\n" +
			"It changes nothing. Without a cluster it does the first half.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "properties `FILE` of the broker on this machine"},
			&cli.StringSliceFlag{Name: "set", Usage: "`KEY=VALUE` as given to start (repeatable)"},
			&cli.StringFlag{Name: "data", Usage: "data `DIR` as given to start"},
			&cli.StringFlag{Name: "http", Usage: "`HOST:PORT` of a broker's health port (default: where the brokers say)"},
		},
		Action: runDoctor,
	}
}

func runDoctor(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]finding{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	x := newExamination(e)
	x.httpAt = c.String("http")
	x.limits()
	cfg := x.configuration(c.String("config"), c.StringSlice("set"), c.String("data"))
	if cfg != nil {
		named := c.IsSet("data") || c.IsSet("config") || cfg.Static["log.dirs"] != ""
		x.dataDirectory(cfg.DataDir, named)
		x.ports(c.Context, cfg)
	}
	x.cluster(c.Context)
	if c.Context.Err() != nil {
		return context.Canceled
	}
	if err := e.emit(result{value: x.findings, text: func(w io.Writer, _ bool) { printExamination(w, x.findings, e.stdoutWidth()) }}); err != nil {
		return err
	}
	counts := map[string]int{}
	for _, f := range x.findings {
		counts[f.Status]++
	}
	e.hint("%s: %d ok, %s, %d failed, %d skipped", count(len(x.findings), "check"), counts[checkOK], count(counts[checkWarning], "warning"), counts[checkFailed], counts[checkSkipped])
	if counts[checkFailed] > 0 {
		return silent(exitCondition)
	}
	return nil
}

func newExamination(e *env) *examination {
	return &examination{e: e, openFiles: openFileLimit, usage: diskUsage, euid: os.Geteuid(), now: time.Now}
}

// limits checks what the system lets a process have. A broker needs a descriptor for each segment and connection.
func (x *examination) limits() {
	const check, wanted, least = "open files", 65536, 4096
	n, err := x.openFiles()
	fix := "LimitNOFILE=1048576 in the systemd unit, ulimit -n 1048576 in a shell, --ulimit nofile=1048576 for a container"
	switch {
	case err != nil:
		x.add(check, checkSkipped, "the limit cannot be read: "+err.Error(), "")
	case n == 0:
		x.add(check, checkOK, "there is no limit", "")
	case n < least:
		x.add(check, checkFailed, fmt.Sprintf("a process may have %d open files here; a broker runs out of them with a few hundred partitions or connections", n), fix)
	case n < wanted:
		x.add(check, checkWarning, fmt.Sprintf("a process may have %d open files here, which is little for thousands of partitions and connections", n), fix)
	default:
		x.add(check, checkOK, fmt.Sprintf("a process may have %d", n), "")
	}
}

// configuration checks what a broker on this machine would be started with. It returns nil when it would not start.
func (x *examination) configuration(file string, set []string, data string) *broker.Config {
	const check = "configuration"
	what := "defaults and environment"
	if file != "" {
		what = file
		findings, err := lintFile(file)
		if err != nil {
			f := explain("read "+file, err)
			x.add(check, checkFailed, f.what+": "+f.why, f.fix)
			return nil
		}
		bad := false
		for _, f := range findings {
			switch f.Severity {
			case "error":
				bad = true
				x.add(check, checkFailed, f.Message, f.Fix)
			case "warning":
				x.add(check, checkWarning, f.Message, f.Fix)
			}
		}
		if bad {
			return nil
		}
	}
	if data != "" {
		set = append(set, "log.dirs="+data)
	}
	settings, err := broker.ReadSettings(broker.Layers{File: file, Environ: os.Environ(), Set: set})
	var cfg broker.Config
	if err == nil {
		cfg, err = broker.FromSettings(settings, broker.Options{DataDir: "./millrace-data"})
	}
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		for _, one := range joined(err) {
			f := explain("read the configuration", one)
			x.add(check, checkFailed, f.what+": "+f.why, f.fix)
		}
		return nil
	}
	message := what + ": a broker would start"
	if n := len(settings.WithoutEffect()); n > 0 {
		message += fmt.Sprintf("; %s without effect (millrace cluster config lint names them)", count(n, "key"))
	}
	x.add(check, checkOK, message, "")
	return &cfg
}

// joined takes errors.Join apart.
func joined(err error) []error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return many.Unwrap()
	}
	return []error{err}
}

// printExamination writes a line per check, wrapped to the terminal, with the mend below it.
func printExamination(w io.Writer, findings []finding, width int) {
	longest := len("CHECK")
	for _, f := range findings {
		longest = max(longest, len(f.Check))
	}
	indent := strings.Repeat(" ", len("warning")+2+longest+2)
	fmt.Fprintf(w, "%-9s%-*s%s\n", "STATUS", longest+2, "CHECK", "FOUND")
	for _, f := range findings {
		head := fmt.Sprintf("%-9s%-*s", f.Status, longest+2, f.Check)
		for i, l := range wrap(f.Message, width-len(indent)) {
			if i > 0 {
				head = indent
			}
			fmt.Fprintln(w, head+l)
		}
		if f.Fix == "" {
			continue
		}
		head = indent + "fix:   "
		for i, l := range wrap(f.Fix, width-len(head)) {
			if i > 0 {
				head = indent + "       "
			}
			fmt.Fprintln(w, head+l)
		}
	}
}
