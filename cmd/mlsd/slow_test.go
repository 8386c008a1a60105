package main

import (
	"io"
	"time"

	"mlsd/api/mlsapi"
)

// slowRequest is an unfinished request. The server knows its caller and waits for the rest of the
// body.
type slowRequest struct {
	u       *user
	rest    []byte
	body    *io.PipeWriter
	outcome chan outcome
}

type outcome struct {
	answer
	err error
}

// startSlow sends half of a createConvo of a new user, and returns when the server has looked the
// user up.
func (u *user) startSlow() *slowRequest {
	u.w.t.Helper()
	r := u.procedure(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{
		GroupID: "abcd", CipherSuite: "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", IdempotencyKey: newKey(),
	})
	reader, writer := io.Pipe()
	s := &slowRequest{u: u, rest: r.body[10:], body: writer, outcome: make(chan outcome, 1)}
	go func() {
		a, err := r.sendBody(reader)
		s.outcome <- outcome{a, err}
	}()
	if _, err := writer.Write(r.body[:10]); err != nil {
		u.w.t.Fatal(err)
	}
	select {
	case <-u.asked:
	case <-time.After(deadline):
		u.w.t.Fatal("the server did not look the caller up")
	}
	return s
}

// finish sends the rest and returns the answer.
func (s *slowRequest) finish() answer {
	s.u.w.t.Helper()
	if _, err := s.body.Write(s.rest); err != nil {
		s.u.w.t.Fatal(err)
	}
	if err := s.body.Close(); err != nil {
		s.u.w.t.Fatal(err)
	}
	o := <-s.outcome
	if o.err != nil {
		s.u.w.t.Fatalf("the request under way was cut off: %v", o.err)
	}
	return o.answer
}

// abandon ends the request without an answer.
func (s *slowRequest) abandon() {
	if err := s.body.CloseWithError(io.ErrUnexpectedEOF); err != nil {
		s.u.w.t.Error(err)
	}
	<-s.outcome
}
