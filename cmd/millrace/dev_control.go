package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// devControl is where the dev process takes orders from the other dev commands: HTTP on a loopback port of its own, with
// a token that only this user can read.
type devControl struct {
	address, token string
	server         *http.Server
	done           chan struct{}
}

// devOrder carries out one order and returns the cluster as it is then.
type devOrder func(ctx context.Context, id int) error

func openDevControl(s *supervisor) (*devControl, error) {
	c, err := serveDevControl(s.snapshot, map[string]devOrder{"kill": s.killBroker, "restart": s.restartBroker, "add": s.addBroker, "stop": s.stopAll})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// serveDevControl serves the state and the orders.
func serveDevControl(state func() devState, orders map[string]devOrder) (*devControl, error) {
	l, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return nil, fmt.Errorf("open the control port of dev: %w", err)
	}
	c := &devControl{address: l.Addr().String(), token: rand.Text(), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) { answerDev(w, state(), nil) })
	for name, order := range orders {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, r *http.Request) {
			id, err := strconv.Atoi(r.URL.Query().Get("id"))
			if err != nil {
				id = 0
			}
			err = order(r.Context(), id)
			answerDev(w, state(), err)
		})
	}
	c.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+c.token)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})}
	go func() {
		defer close(c.done)
		_ = c.server.Serve(l) // ends with close
	}()
	return c, nil
}

// close lets orders under way end, for a moment, and closes the port.
func (c *devControl) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.server.Shutdown(ctx) != nil {
		_ = c.server.Close()
	}
	<-c.done
}

// devAnswer is what an order is answered with.
type devAnswer struct {
	State devState  `json:"state"`
	Error *devError `json:"error"`
}

type devError struct {
	Code           int    `json:"code"`
	What, Why, Fix string `json:",omitempty"`
}

func answerDev(w http.ResponseWriter, state devState, err error) {
	a := devAnswer{State: state}
	if err != nil {
		f := explain("carry out the order", err)
		a.Error = &devError{f.code, f.what, f.why, f.fix}
	}
	a.State.Token = ""
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // the asker may be gone
}

// ask gives an order to the dev process of a cluster, or with "" only asks for its state.
func (s *devState) ask(ctx context.Context, order string, id int) (*devState, error) {
	method, path := http.MethodPost, order
	if order == "" {
		method, path = http.MethodGet, "state"
	}
	u := url.URL{Scheme: "http", Host: s.Control, Path: "/" + path, RawQuery: url.Values{"id": {strconv.Itoa(id)}}.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(nil))
	if err != nil {
		return nil, fmt.Errorf("ask the dev process: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return nil, err
		}
		return nil, &failure{code: exitFailed, what: fmt.Sprintf("the dev process %d does not take the order", s.Supervisor.PID), why: dialReason(err), fix: fmt.Sprintf("is it stopped (Ctrl-Z)? otherwise kill %d   its brokers end with it", s.Supervisor.PID), cause: err}
	}
	defer resp.Body.Close()
	var a devAnswer
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&a); err != nil || resp.StatusCode != http.StatusOK {
		return nil, &failure{code: exitFailed, what: fmt.Sprintf("the dev process %d answered something strange", s.Supervisor.PID), why: "HTTP status " + resp.Status, fix: "use the same version of millrace for dev and its commands", cause: err}
	}
	if a.Error != nil {
		return &a.State, &failure{code: a.Error.Code, what: a.Error.What, why: a.Error.Why, fix: a.Error.Fix}
	}
	return &a.State, nil
}
