package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/broker"
	"github.com/millrace/millrace/log/vfs"
)

// diskUsage is the production usage.
func diskUsage(dir string) (free, total int64, err error) { return vfs.OS().Usage(dir) }

// dataDirectory checks that a broker of this user could write its data. named says whether somebody asked for this
// directory; otherwise it is looked at only when it is there. Nothing is written.
func (x *examination) dataDirectory(dir string, named bool) {
	const check = "data directory"
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if !named {
			x.add(check, checkSkipped, "there is no "+dir+"; --data or --config names another", "")
			return
		}
		x.missingDirectory(dir)
		return
	}
	switch {
	case err != nil:
		x.add(check, checkFailed, "cannot look at "+dir+": "+err.Error(), "give this user the right to enter its parents")
		return
	case !info.IsDir():
		x.add(check, checkFailed, dir+" is a file, not a directory", "name a directory with --data or log.dirs")
		return
	}
	if err := writable(dir); err != nil {
		x.add(check, checkFailed, fmt.Sprintf("%s cannot be written by user %d: %v", dir, x.euid, err), fmt.Sprintf("chown -R %d %s, or run as its owner", x.euid, dir))
		return
	}
	if foreign, uid := x.foreignFile(dir, info); foreign != "" {
		x.add(check, checkFailed, fmt.Sprintf("%s belongs to user %d, and this is user %d: a broker of one could not read what that of the other wrote", foreign, uid, x.euid),
			fmt.Sprintf("run doctor and broker as user %d, or chown -R %d %s while no broker runs", uid, x.euid, dir))
		return
	}
	x.add(check, checkOK, dir+" can be written", "")
	x.space(dir)
}

// missingDirectory checks that the directory could be made.
func (x *examination) missingDirectory(dir string) {
	const check = "data directory"
	parent := filepath.Dir(dir)
	for {
		if _, err := os.Stat(parent); err == nil || parent == filepath.Dir(parent) {
			break
		}
		parent = filepath.Dir(parent)
	}
	if err := writable(parent); err != nil {
		x.add(check, checkFailed, fmt.Sprintf("%s is not there, and user %d cannot make it in %s: %v", dir, x.euid, parent, err), fmt.Sprintf("mkdir -p %s && chown %d %s, as root", dir, x.euid, dir))
		return
	}
	x.add(check, checkOK, dir+" is not there yet; the broker will make it", "")
	x.space(parent)
}

// foreignFile returns the directory or a file in it that belongs to another user, "" when there is none.
func (x *examination) foreignFile(dir string, info fs.FileInfo) (path string, uid int) {
	if uid, ok := ownerOf(info); ok && uid != x.euid {
		return dir, uid
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", 0
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			if uid, ok := ownerOf(info); ok && uid != x.euid {
				return filepath.Join(dir, entry.Name()), uid
			}
		}
	}
	return "", 0
}

// space checks the room on the disk by the rule of millrace.disk.reject.percent's default: produce is refused when less
// than 5 % is free, or less than 1 GiB of a larger disk.
func (x *examination) space(dir string) {
	const check = "disk space"
	free, total, err := x.usage(dir)
	if err != nil {
		x.add(check, checkSkipped, "cannot be read: "+err.Error(), "")
		return
	}
	if total <= 0 {
		x.add(check, checkSkipped, "the system does not say", "")
		return
	}
	percent := float64(free) / float64(total) * 100
	message := fmt.Sprintf("%.1f GiB of %.1f GiB free (%.0f %%) for %s", float64(free)/(1<<30), float64(total)/(1<<30), percent, dir)
	switch {
	case free <= min(total/20, 1<<30):
		x.add(check, checkFailed, message+"; a broker refuses produce requests now", "make room, lower retention.ms or retention.bytes of large topics, or move the data to a larger disk")
	case percent < 10:
		x.add(check, checkWarning, message+"; a broker refuses produce requests when it is nearly full", "make room, or lower retention.ms or retention.bytes of large topics")
	default:
		x.add(check, checkOK, message, "")
	}
}

// ports checks that a broker could listen where the configuration says, or that one does.
func (x *examination) ports(ctx context.Context, cfg *broker.Config) {
	for _, l := range cfg.Listeners {
		check := "listener " + l.Name
		err := tryListen(l.Bind)
		switch {
		case err == nil:
			x.add(check, checkOK, l.Bind+" is free: no broker runs there", "")
		case broker.PortTaken(err) && l.Protocol != "PLAINTEXT":
			x.add(check, checkSkipped, l.Bind+" is taken, and speaks TLS, which doctor does not", "")
		case broker.PortTaken(err) && x.brokerAnswers(ctx, l.Bind):
			x.add(check, checkOK, l.Bind+": a broker answers", "")
		default:
			f := explain("listen on "+l.Bind, broker.PortError("listener "+l.Name, l.Bind, err))
			x.add(check, checkFailed, f.what+": "+f.why, f.fix)
		}
	}
	if cfg.HTTPListener == "" {
		return
	}
	const check = "health port"
	err := tryListen(cfg.HTTPListener)
	switch {
	case err == nil:
		x.add(check, checkOK, cfg.HTTPListener+" is free: no broker runs there", "")
	case broker.PortTaken(err) && x.healthAnswers(ctx, cfg.HTTPListener):
		x.add(check, checkOK, cfg.HTTPListener+": a broker answers", "")
	default:
		f := explain("listen on "+cfg.HTTPListener, broker.PortError("millrace.http.listener", cfg.HTTPListener, err))
		x.add(check, checkFailed, f.what+": "+f.why, f.fix)
	}
}

// tryListen opens and closes a listener.
func tryListen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// brokerAnswers says whether something at a bound address speaks the Kafka protocol.
func (x *examination) brokerAnswers(ctx context.Context, bind string) bool {
	probe := *x.e
	probe.brokers, probe.profileErr, probe.timeout = []string{localAddress(bind)}, nil, min(x.e.timeout, 2*time.Second)
	conn, err := probe.connect(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// healthAnswers says whether a broker's health is at a bound address.
func (x *examination) healthAnswers(ctx context.Context, bind string) bool {
	_, body, _, err := getHealth(ctx, localAddress(bind), "/livez", min(x.e.timeout, 2*time.Second))
	return err == nil && (strings.HasPrefix(body, "ok") || strings.HasPrefix(body, "failed"))
}

// localAddress is where this machine reaches a bound address.
func localAddress(bind string) string {
	host, port, err := net.SplitHostPort(bind)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("localhost", port)
	}
	return bind
}

// getHealth asks a health port. date is the answer's Date, zero without one.
func getHealth(ctx context.Context, address, path string, limit time.Duration) (status int, body string, date time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", date, fmt.Errorf("ask %s: %w", address, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", date, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return 0, "", date, fmt.Errorf("read the answer of %s: %w", address, err)
	}
	if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		date = t
	}
	return resp.StatusCode, strings.TrimSpace(string(b)), date, nil
}
