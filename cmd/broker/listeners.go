package broker

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// setListeners reads listeners, advertised.listeners, the protocol map and the TLS keys.
//
// Unless listeners, --advertise or --join is given, listeners are bound to loopback (S1): nobody should open a broker to
// the world by starting it.
func (c *Config) setListeners(s *Settings, o Options) error {
	protocols := map[string]string{}
	for _, item := range metadata.SplitConfigList(s.Get("listener.security.protocol.map")) {
		name, protocol, _ := strings.Cut(item, ":")
		protocols[strings.ToUpper(name)] = protocol
	}
	controllers := map[string]bool{}
	for _, name := range metadata.SplitConfigList(s.Get("controller.listener.names")) {
		controllers[strings.ToUpper(name)] = true
	}
	advertised := map[string]string{}
	for _, item := range metadata.SplitConfigList(s.Get("advertised.listeners")) {
		name, _, _, err := metadata.SplitListener(item)
		if err != nil {
			return err // checked before
		}
		advertised[name] = item
	}
	for _, item := range metadata.SplitConfigList(s.Get("listeners")) {
		name, host, port, err := metadata.SplitListener(item)
		if err != nil {
			return err
		}
		if controllers[name] {
			if !c.reachable(s, o) {
				host = "127.0.0.1"
			}
			if err := c.peerListener(s, o, name, host, port, advertised[name]); err != nil {
				return err
			}
			delete(advertised, name)
			continue
		}
		protocol, known := protocols[name]
		if !known {
			return &metadata.Error{
				Kind: metadata.ErrInvalidConfig,
				What: "listener " + name + " has no security protocol",
				Why:  "its name is not in listener.security.protocol.map",
				Fix:  fmt.Sprintf("listener.security.protocol.map=%s:PLAINTEXT,…", name),
			}
		}
		if !c.reachable(s, o) {
			host = "127.0.0.1"
		}
		l := transport.ListenerConfig{Name: name, Protocol: transport.Protocol(protocol), Bind: net.JoinHostPort(host, strconv.Itoa(port))}
		switch protocol {
		case "SASL_PLAINTEXT", "SASL_SSL":
			return &metadata.Error{
				Kind: metadata.ErrInvalidConfig,
				What: fmt.Sprintf("listener %s asks for %s", name, protocol),
				Why:  "authentication comes in a later release; to open it without would let anyone in",
				Fix:  fmt.Sprintf("PLAINTEXT on a trusted network, or SSL with ssl.client.auth=required: listener.security.protocol.map=%s:SSL", name),
			}
		case "SSL":
			if l.TLS, err = tlsOf(s, name); err != nil {
				return err
			}
		}
		l.AdvertisedHost = advertisedHost(host, o.Advertise)
		if a, ok := advertised[name]; ok {
			_, ah, ap, err := metadata.SplitListener(a)
			if err != nil {
				return err
			}
			l.AdvertisedHost, l.AdvertisedPort = ah, int32(ap)
			delete(advertised, name)
		}
		if everywhere(host) && isLoopback(l.AdvertisedHost) {
			c.Notes = append(c.Notes, fmt.Sprintf("warning: listener %s accepts connections from other machines but tells them to connect to %s; set advertised.listeners to an address they can reach",
				name, l.AdvertisedHost))
		}
		if l.Protocol == transport.Plaintext && !isLoopback(host) {
			c.Notes = append(c.Notes, fmt.Sprintf("warning: listener %s is open to the network without encryption or authentication", name))
		}
		c.Listeners = append(c.Listeners, l)
	}
	for name, item := range advertised {
		if controllers[name] {
			continue
		}
		return &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: "advertised.listeners names " + item,
			Why:  "there is no listener " + name + " in listeners",
			Fix:  "listeners=" + name + "://:9092,… or take it off advertised.listeners",
		}
	}
	return nil
}

// tlsOf reads the TLS keys of a listener: listener.name.<name>.ssl.* before ssl.*.
func tlsOf(s *Settings, name string) (*transport.TLSConfig, error) {
	get := func(key string) string {
		if own := "listener.name." + strings.ToLower(name) + "." + key; hasValue(s, own) {
			return s.values[own]
		}
		return s.Get(key)
	}
	pem := get("ssl.keystore.location")
	if pem == "" {
		return nil, &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: "listener " + name + " is SSL and has no certificate",
			Why:  "ssl.keystore.location is not set",
			Fix:  "ssl.keystore.location=/etc/millrace/server.pem   (private key and certificate chain in one PEM file)",
		}
	}
	t := &transport.TLSConfig{CertFile: pem, KeyFile: pem, ClientCAFile: get("ssl.truststore.location"), ClientAuth: transport.ClientAuth(get("ssl.client.auth"))}
	if t.ClientAuth != transport.ClientAuthNone && t.ClientCAFile == "" {
		return nil, &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: fmt.Sprintf("listener %s has ssl.client.auth=%s and no authorities", name, t.ClientAuth),
			Why:  "ssl.truststore.location is not set, so no client's certificate could be checked",
			Fix:  "ssl.truststore.location=/etc/millrace/ca.pem",
		}
	}
	for _, file := range []string{t.CertFile, t.ClientCAFile} {
		if _, err := os.Stat(file); file != "" && err != nil {
			return nil, &metadata.Error{Kind: metadata.ErrInvalidConfig, What: "listener " + name + ": cannot read " + file, Why: err.Error(), Fix: "name an existing PEM file that this user can read"}
		}
	}
	return t, nil
}

func hasValue(s *Settings, name string) bool { return s.values[name] != "" }

// everywhere says whether a bound host stands for all addresses of the machine.
func everywhere(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// advertisedHost derives what clients are told: --advertise, else the bound address, else the address of the default
// route, else this machine's name. Never an address that stands for all.
func advertisedHost(bound, advertise string) string {
	if advertise != "" {
		return strings.Trim(advertise, "[]")
	}
	if !everywhere(bound) {
		return bound
	}
	// Connecting a UDP socket sends nothing; it only asks the kernel which address it would send from.
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		address, ok := conn.LocalAddr().(*net.UDPAddr)
		conn.Close()
		if ok && !address.IP.IsUnspecified() && !address.IP.IsLoopback() {
			return address.IP.String()
		}
	}
	if addresses, err := net.InterfaceAddrs(); err == nil {
		slices.SortFunc(addresses, func(a, b net.Addr) int { return strings.Compare(a.String(), b.String()) })
		for _, a := range addresses {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
				return ip.IP.String()
			}
		}
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return "localhost"
}
