package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// open starts a member on a free port of loopback.
func open(t *testing.T, name string, change func(*Config)) *Membership {
	t.Helper()
	cfg := Config{Name: name, Bind: "127.0.0.1:0", Meta: []byte("meta of " + name)}
	if change != nil {
		change(&cfg)
	}
	m, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// await reads events of m until one matches, and returns it.
func await(t *testing.T, m *Membership, what string, match func(Event) bool) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		select {
		case e := <-m.Events():
			if match(e) {
				return e
			}
		case <-ctx.Done():
			t.Fatalf("no event: %s", what)
		}
	}
}

func join(to ...*Membership) func(*Config) {
	return func(c *Config) {
		for _, m := range to {
			c.Join = append(c.Join, m.Self().Addr.String())
		}
	}
}

func TestMembersJoinUpdateAndLeave(t *testing.T) {
	a := open(t, "a", nil)
	b := open(t, "b", join(a))
	e := await(t, a, "join of b", func(e Event) bool { return e.Kind == Join && e.Member.Name == "b" })
	require.Equal(t, "meta of b", string(e.Member.Meta))
	c := open(t, "c", join(a))
	await(t, a, "join of c", func(e Event) bool { return e.Kind == Join && e.Member.Name == "c" })
	await(t, b, "join of c", func(e Event) bool { return e.Member.Name == "c" }) // by gossip: b never called c
	require.Equal(t, c.Self().Addr, b.Members()[1].Addr)

	require.NoError(t, c.UpdateMeta([]byte("another")))
	for _, m := range []*Membership{a, b} {
		await(t, m, "update of c", func(e Event) bool { return e.Member.Name == "c" && string(e.Member.Meta) == "another" })
	}
	require.NoError(t, c.Leave(t.Context()))
	await(t, a, "leave of c", func(e Event) bool { return e.Kind == Leave && e.Member.Name == "c" })
}

// Whoever reads the members while gossip changes them sees each as it was at some moment. Only -race can tell.
func TestMembersAreReadWhileTheyChange(t *testing.T) {
	a := open(t, "a", nil)
	b := open(t, "b", join(a))
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join })
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, m := range append(a.Members(), b.Self()) {
				if string(m.Meta) == "" || m.Addr != b.Self().Addr {
					t.Errorf("read %+v", m)
				}
			}
			runtime.Gosched()
		}
	})
	for i := range 10 {
		meta := fmt.Sprint("meta ", i)
		require.NoError(t, b.UpdateMeta([]byte(meta)))
		require.Equal(t, meta, string(b.Self().Meta))
		await(t, a, "update of b", func(e Event) bool { return string(e.Member.Meta) == meta })
	}
	close(stop)
	reader.Wait()
}

// D5: silence is noticed. The pace itself is measured elsewhere.
func TestSilenceIsAFail(t *testing.T) {
	a := open(t, "a", nil)
	b, err := Open(Config{Name: "b", Bind: "127.0.0.1:0", Join: []string{a.Self().Addr.String()}})
	require.NoError(t, err)
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join })
	require.NoError(t, b.Close()) // without Leave
	await(t, a, "fail of b", func(e Event) bool { return e.Kind == Fail && e.Member.Name == "b" })
	require.Empty(t, a.Members())
}

// M13: a second process under one name is told of.
func TestOneNameTwiceIsAClash(t *testing.T) {
	a := open(t, "a", nil)
	b := open(t, "b", join(a))
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join })
	second := open(t, "b", join(a))
	e := await(t, second, "clash", func(e Event) bool { return e.Kind == Clash })
	require.Equal(t, b.Self().Addr, e.Member.Addr)
	require.Equal(t, b.Self().Addr, a.Members()[0].Addr, "the first stays")
}

// A process that comes back under its name at another address is no clash once the old one was noticed to be gone.
func TestANameMovesAfterItsProcessDied(t *testing.T) {
	a := open(t, "a", nil)
	b, err := Open(Config{Name: "b", Bind: "127.0.0.1:0", Join: []string{a.Self().Addr.String()}})
	require.NoError(t, err)
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join })
	require.NoError(t, b.Close())
	await(t, a, "fail of b", func(e Event) bool { return e.Kind == Fail })
	moved := open(t, "b", join(a))
	e := await(t, a, "b again", func(e Event) bool { return e.Kind == Join })
	require.Equal(t, moved.Self().Addr, e.Member.Addr)
}

func TestRefusedMembersAreNotKnown(t *testing.T) {
	refused := errors.New("of another cluster")
	admit := func(mine string) func(Member) error {
		return func(m Member) error {
			if string(m.Meta) != mine {
				return refused
			}
			return nil
		}
	}
	a := open(t, "a", func(c *Config) { c.Meta, c.Admit = []byte("A"), admit("A") })
	stranger := open(t, "s", func(c *Config) {
		c.Meta, c.Admit = []byte("B"), admit("B")
		join(a)(c)
	})
	require.Eventually(t, func() bool { return stranger.Seeds()[0].Err != nil }, 10*time.Second, 10*time.Millisecond)
	require.ErrorContains(t, stranger.Seeds()[0].Err, refused.Error())
	friend := open(t, "f", func(c *Config) {
		c.Meta, c.Admit = []byte("A"), admit("A")
		join(a, stranger)(c)
	})
	await(t, friend, "join of a", func(e Event) bool { return e.Member.Name == "a" })
	await(t, a, "join of f", func(e Event) bool { return e.Member.Name == "f" }) // who is called merges after the caller may have
	require.Empty(t, stranger.Members())
	require.Len(t, a.Members(), 1)
}

func TestSeedsSayWhyNobodyIsThere(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	a := open(t, "a", func(c *Config) { c.Join = []string{address, "no.such.host.invalid:1"} })
	require.Eventually(t, func() bool {
		seeds := a.Seeds()
		return errors.Is(seeds[0].Err, syscall.ECONNREFUSED) || seeds[0].Err != nil && seeds[1].Err != nil
	}, 20*time.Second, 10*time.Millisecond)
	require.ErrorContains(t, a.Seeds()[0].Err, "connection refused")
	require.False(t, a.Seeds()[0].Next.IsZero())

	// The other comes up later, at an address that was refused before.
	b := open(t, "b", func(c *Config) { c.Bind = address })
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join })
	require.Equal(t, address, b.Self().Addr.String())
}

func TestKeys(t *testing.T) {
	const one, two = "MDEyMzQ1Njc4OWFiY2RlZg==", "ZmVkY2JhOTg3NjU0MzIxMA=="
	keys := func(text string) [][]byte {
		all, err := ParseKeys(text)
		require.NoError(t, err)
		return all
	}
	a := open(t, "a", func(c *Config) { c.Keys = keys(one) })
	plain := open(t, "p", join(a))
	require.Eventually(t, func() bool { return plain.Seeds()[0].Err != nil }, 10*time.Second, 10*time.Millisecond)
	require.Empty(t, a.Members())
	rotating := open(t, "b", func(c *Config) {
		c.Keys = keys(one + ", " + two)
		join(a)(c)
	})
	await(t, a, "join of b", func(e Event) bool { return e.Kind == Join && e.Member.Name == "b" })
	await(t, rotating, "join of a", func(e Event) bool { return e.Kind == Join })

	f := func(text, want string) {
		t.Helper()
		_, err := ParseKeys(text)
		require.ErrorIs(t, err, ErrKey)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), text)
	}
	f("secret!", "not base64")
	f(one+",c2hvcnQ=", "number 2 has 5 bytes")
	require.Empty(t, keys(""))
}

func TestPortErrors(t *testing.T) {
	a := open(t, "a", nil)
	_, err := Open(Config{Name: "b", Bind: a.Self().Addr.String()})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = Open(Config{Name: "", Bind: "127.0.0.1:0"})
	require.Error(t, err)
	_, err = Open(Config{Name: "b", Bind: "127.0.0.1:0", Meta: make([]byte, MetaMaxBytes+1)})
	require.Error(t, err)
}

func TestAdvertise(t *testing.T) {
	a := open(t, "a", func(c *Config) { c.Bind, c.Advertise = "0.0.0.0:0", "localhost" })
	require.Equal(t, netip.MustParseAddr("127.0.0.1"), a.Self().Addr.Addr())
	require.NotZero(t, a.Self().Addr.Port())
	b := open(t, "b", func(c *Config) { c.Advertise = "127.0.0.2:77" })
	require.Equal(t, "127.0.0.2:77", b.Self().Addr.String())
}

// Events of a member that nobody read are one: the latest.
func TestEventsMerge(t *testing.T) {
	e := newEvents()
	for i := range 1000 {
		e.add(Event{Kind: Update, Member: Member{Name: "a", Meta: fmt.Append(nil, i)}})
	}
	e.add(Event{Kind: Join, Member: Member{Name: "b"}})
	e.add(Event{Kind: Update, Member: Member{Name: "b", Meta: []byte("x")}})
	e.add(Event{Kind: Fail, Member: Member{Name: "a"}})
	e.add(Event{Kind: Clash, Member: Member{Name: "a"}})
	var got []string
	for {
		next, ok := e.take()
		if !ok {
			break
		}
		got = append(got, next.Kind.String()+" "+next.Member.Name+string(next.Member.Meta))
	}
	require.Equal(t, []string{"fail a", "join bx", "clash a"}, got)
}
