package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Seeds are tried at once, then after a pause that doubles up to seedPauseMax: brokers that are started together find
// each other in a moment, and one that waits for hours costs nothing.
const (
	seedPauseMin   = 100 * time.Millisecond
	seedPauseMax   = 5 * time.Second
	resolveTimeout = 3 * time.Second
	// seedsAtOnce bounds the connections of one round.
	seedsAtOnce = 8
)

// Seed is an address to find others at, and how it stands.
type Seed struct {
	// Address is the entry of Config.Join, with its port.
	Address string
	// Addrs are the addresses it stood for when it was last tried.
	Addrs []netip.AddrPort
	// Err is why nobody was reached at it at the last try, nil when somebody was or it was not tried yet.
	Err error
	// Next is when it is tried again; zero while somebody is there.
	Next time.Time
}

// seeds tries the join list, and those that were members once, until each is answered or its member is known.
type seeds struct {
	m    *Membership
	kick chan struct{}

	mu struct {
		sync.Mutex
		list []Seed
	}
}

func newSeeds(m *Membership, join []string) *seeds {
	s := &seeds{m: m, kick: make(chan struct{}, 1)}
	for _, address := range join {
		if address = strings.TrimSpace(address); address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(defaultGossipPort))
		}
		if !slices.ContainsFunc(s.mu.list, func(have Seed) bool { return have.Address == address }) {
			s.mu.list = append(s.mu.list, Seed{Address: address})
		}
	}
	return s
}

func (s *seeds) list() []Seed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.list)
}

func (s *seeds) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run tries until ctx ends. A seed whose address is that of a live member is left alone.
func (s *seeds) run(ctx context.Context) {
	if len(s.mu.list) == 0 {
		return
	}
	pause := seedPauseMin
	for {
		if s.round(ctx, pause) {
			pause = seedPauseMax // nothing to do but to look whether it stays so
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.kick:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
		pause = min(2*pause, seedPauseMax)
	}
}

// round tries every absent seed once and reports whether none was absent.
func (s *seeds) round(ctx context.Context, pause time.Duration) bool {
	known := map[netip.AddrPort]bool{s.m.Self().Addr: true}
	for _, member := range s.m.Members() {
		known[member.Addr] = true
	}
	var tries sync.WaitGroup
	limit := make(chan struct{}, seedsAtOnce)
	complete := true
	for i, seed := range s.list() {
		if slices.ContainsFunc(seed.Addrs, func(a netip.AddrPort) bool { return known[a] }) {
			s.set(i, seed.Addrs, nil, time.Time{})
			continue
		}
		complete = false
		limit <- struct{}{}
		tries.Go(func() {
			defer func() { <-limit }()
			addrs, err := s.try(ctx, seed.Address, known)
			next := time.Time{}
			if err != nil {
				next = time.Now().Add(pause)
			}
			s.set(i, addrs, err, next)
		})
	}
	tries.Wait()
	return complete
}

func (s *seeds) set(i int, addrs []netip.AddrPort, err error, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seed := &s.mu.list[i]
	if addrs != nil {
		seed.Addrs = addrs
	}
	seed.Err, seed.Next = err, next
}

// try exchanges lists with whoever is at the address. A name may stand for several addresses: each is tried.
func (s *seeds) try(ctx context.Context, address string, known map[netip.AddrPort]bool) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addrs {
		if known[a] {
			return addrs, nil
		}
	}
	reached := false
	for _, a := range addrs {
		if _, err := s.m.list.Join([]string{a.String()}); err != nil {
			errs = append(errs, joinError(err))
			continue
		}
		reached = true
	}
	if reached {
		return addrs, nil
	}
	return addrs, errors.Join(errs...)
}

// joinError takes memberlist's list of one error apart, which has lines and a bullet.
func joinError(err error) error {
	var many interface{ WrappedErrors() []error }
	if errors.As(err, &many) && len(many.WrappedErrors()) == 1 {
		err = many.WrappedErrors()[0]
	}
	return err
}

// resolve turns host:port into addresses.
func resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("read the address %q: %w", address, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("read the port of %q: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("resolve %s: it has no address", host)
	}
	return all, nil
}
