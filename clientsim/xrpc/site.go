package xrpc

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Site is an HTTP server of ours on this machine.
type Site struct {
	URL string

	server *http.Server
	done   chan error // Serve's result, once
}

// Serve serves at an address, such as "127.0.0.1:0", until Close.
func Serve(address string, handler http.Handler) (*Site, error) {
	listen, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	s := &Site{URL: "http://" + listen.Addr().String(), done: make(chan error, 1)}
	s.server = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { s.done <- s.server.Serve(listen) }()
	return s, nil
}

// Close ends running requests, stops serving and waits for the end.
func (s *Site) Close() error {
	err := s.server.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
