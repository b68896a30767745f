package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// notify tells the service manager that started this process how it stands, over the datagram socket that it named in
// NOTIFY_SOCKET (systemd's Type=notify): READY=1 once the broker serves, STOPPING=1 when it begins to stop. Without
// such a socket it does nothing. The protocol is one datagram of KEY=VALUE lines; there is no answer.
func notify(states ...string) (err error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("tell the service manager %s at %s: %w", strings.Join(states, " "), path, err)
		}
	}()
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:] // Linux's abstract names
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(strings.Join(states, "\n")))
	return errors.Join(err, conn.Close())
}

// tellManager is notify for a broker: what cannot be told is logged, and no reason to stop.
func (b *Broker) tellManager(states ...string) {
	if err := notify(states...); err != nil {
		b.logger.Warn("service manager not told", "error", err)
	}
}
