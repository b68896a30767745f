package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

// adminPort is where brokers serve the admin API unless they are told otherwise.
const adminPort = "9644"

// adminFlag names the addresses of the admin API, for the commands that use it.
func adminFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "admin", Usage: "`HOST:PORT`,… of any broker's admin API (default: the profile's, else the brokers' hosts and 9644) [$MILLRACE_ADMIN]"}
}

// adminAddresses are where the admin API may be: the flag's, the environment's, the profile's, else the seeds' hosts.
func (e *env) adminAddresses(c *cli.Context) []string {
	var out []string
	for _, lists := range [][]string{c.StringSlice("admin"), {os.Getenv("MILLRACE_ADMIN")}} {
		for _, list := range lists {
			for a := range strings.SplitSeq(list, ",") {
				if a = strings.TrimSpace(a); a != "" {
					out = append(out, withPort(a, adminPort))
				}
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	// The profile's are those of its own brokers: they do not count for brokers that were named apart from it.
	if list := e.options[adminProperty]; list != "" && (!e.named || strings.Join(e.brokers, ",") == e.options["bootstrap.servers"]) {
		for a := range strings.SplitSeq(list, ",") {
			if a = strings.TrimSpace(a); a != "" {
				out = append(out, withPort(a, adminPort))
			}
		}
		return out
	}
	for _, b := range e.brokers {
		host, _, err := net.SplitHostPort(b)
		if err != nil {
			continue
		}
		if a := net.JoinHostPort(host, adminPort); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// admin asks the admin API of some broker.
type admin struct {
	e         *env
	addresses []string
	client    *http.Client
}

// adminAnswer opens the admin API for a command without arguments and gets what the command begins with. It returns nil
// without an error when only the fields of the answer were asked for, and printed.
func adminAnswer[T any](c *cli.Context, path string) (*admin, *T, error) {
	e, v := envOf(c), new(T)
	if e.wantsFields(*v) {
		return nil, nil, nil
	}
	if err := noArguments(c); err != nil {
		return nil, nil, err
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return nil, nil, err
	}
	if err := a.get(c.Context, path, v); err != nil {
		return nil, nil, err
	}
	return a, v, nil
}

// brokerAnswer is adminAnswer for a command about one broker: path has its id where it says %d.
func brokerAnswer[T any](c *cli.Context, path string) (a *admin, id int32, v *T, err error) {
	e := envOf(c)
	v = new(T)
	if e.wantsFields(*v) {
		return nil, 0, nil, nil
	}
	if id, err = brokerArgument(c); err != nil {
		return nil, 0, nil, err
	}
	if a, err = e.openAdmin(c); err != nil {
		return nil, 0, nil, err
	}
	if strings.Contains(path, "%d") {
		path = fmt.Sprintf(path, id)
	}
	if err := a.get(c.Context, path, v); err != nil {
		return nil, 0, nil, err
	}
	return a, id, v, nil
}

// openAdmin prepares to ask the admin API. Nothing is sent yet.
func (e *env) openAdmin(c *cli.Context) (*admin, error) {
	if e.profileErr != nil {
		return nil, e.profileErr
	}
	return &admin{e: e, addresses: e.adminAddresses(c), client: &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: min(e.timeout, 5*time.Second)}).DialContext, DisableKeepAlives: true, Proxy: nil,
	}}}, nil
}

// get asks for a document.
func (a *admin) get(ctx context.Context, path string, answer any) error {
	return a.do(ctx, http.MethodGet, path, nil, answer)
}

// do sends a request to the first broker that is there, and decodes its answer. An order is never sent twice: once a
// broker has taken it, its answer is the answer.
func (a *admin) do(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, max(a.e.timeout, time.Second))
	defer cancel()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	var last *failure
	for _, address := range a.addresses {
		f, again := a.try(ctx, address, method, path, content, answer)
		if f == nil {
			return nil
		}
		if last = f; !again {
			break
		}
	}
	if last == nil {
		last = &failure{code: exitUsage, what: "there is no address for the admin API", why: "neither brokers nor --admin name one", fix: "--admin HOST:9644"}
	}
	if errors.Is(last.cause, context.Canceled) {
		return last.cause
	}
	return last
}

// try sends a request to one address. again says that another broker may be asked: this one has not taken it.
func (a *admin) try(ctx context.Context, address, method, path string, content []byte, answer any) (f *failure, again bool) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, bytes.NewReader(content))
	if err != nil {
		return &failure{code: exitUsage, what: "cannot ask the admin API at " + address, why: oneLine(err.Error()), fix: "--admin HOST:9644", cause: err}, false
	}
	if a.e.verbose {
		fmt.Fprintln(a.e.stderr, method, req.URL)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		f := &failure{code: exitNoConnection, what: "cannot reach the admin API at " + address, why: dialReason(err), cause: err,
			fix: "--admin HOST:PORT names another broker's; it answers on the broker's own machine only: run the command there, or ssh -L 9644:localhost:9644 HOST"}
		var dial *net.OpError
		dialed := errors.As(err, &dial) && dial.Op == "dial"
		if !dialed {
			f.what = "no answer from the admin API at " + address
			if errors.Is(err, context.DeadlineExceeded) {
				f.code, f.why, f.fix = exitTimeout, fmt.Sprintf("it did not answer within %s", a.e.timeout), "raise --timeout, and look before you try again"
			}
		}
		return f, dialed || method == http.MethodGet
	}
	defer resp.Body.Close()
	const most = 64 << 20
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return &failure{code: exitNoConnection, what: "the answer of the admin API at " + address + " broke off", why: oneLine(err.Error()), fix: "look whether the order was carried out, then try again", cause: err}, method == http.MethodGet
	}
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusServiceUnavailable && strings.HasPrefix(path, "/safe-to-stop") {
		if err := json.Unmarshal(b, answer); err != nil {
			return strange(address, resp.Status, err), false
		}
		return nil, false
	}
	var lines console.ErrorAnswer
	if err := json.Unmarshal(b, &lines); err != nil || lines.Error.What == "" {
		return strange(address, resp.Status, err), false
	}
	f = &failure{code: exitFailed, what: lines.Error.What, why: lines.Error.Why, fix: lines.Error.Fix}
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		f.code = exitUnauthorised
	case http.StatusGatewayTimeout:
		f.code = exitTimeout
	case http.StatusBadRequest:
		f.code = exitUsage
	}
	return f, false
}

func strange(address, status string, err error) *failure {
	return &failure{code: exitFailed, what: "what answers at " + address + " is no admin API of ours", why: "it says " + status, fix: "--admin HOST:PORT names the right one; a broker of an earlier release has none", cause: err}
}

// brokerArgument reads the one argument of commands about a broker.
func brokerArgument(c *cli.Context) (int32, error) {
	return oneBroker(c, c.Args().Slice())
}

func oneBroker(c *cli.Context, args []string) (int32, error) {
	if len(args) != 1 {
		f := usageError(fmt.Sprintf("%s takes the id of one broker, not %d", c.Command.HelpName, len(args)), c.Command.HelpName+" 2")
		f.why = "millrace cluster brokers list   shows the ids"
		return 0, f
	}
	return brokerNumber(c, args[0])
}

func brokerNumber(c *cli.Context, text string) (int32, error) {
	ids, err := brokerNumbers(text)
	if err != nil || len(ids) != 1 {
		f := usageError(fmt.Sprintf("%q is not a broker id", text), c.Command.HelpName+" 2")
		f.why = "an id is a number; millrace cluster brokers list   shows them"
		return 0, f
	}
	return ids[0], nil
}

// poll calls look until it says that all is done, at most until ctx ends.
func poll(ctx context.Context, every time.Duration, look func(ctx context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		done, err := look(ctx)
		if err != nil || done {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waitContext is that of --wait: bounded by --timeout when that is given, else by nothing.
func (e *env) waitContext(c *cli.Context) (context.Context, context.CancelFunc) {
	if c.IsSet("timeout") {
		return context.WithTimeout(c.Context, e.timeout)
	}
	return context.WithCancel(c.Context)
}

// waitFailure explains why a wait ended early. why says what was still to be done.
func (e *env) waitFailure(err error, what, why, fix string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &failure{code: exitTimeout, what: fmt.Sprintf("%s within %s", what, e.timeout), why: why, fix: fix, cause: err}
	}
	return err
}

// waitInterval is how often --wait looks.
const waitInterval = 250 * time.Millisecond

func waitFlag(usage string) cli.Flag { return &cli.BoolFlag{Name: "wait", Usage: usage} }
func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "show the plan, change nothing"}
}
