package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// CheckDatabase asks the server's own checker, at its admin listener, about everything that is
// stored. It sees the rows, which no client can. It returns the broken promises as text.
func (p *Proc) CheckDatabase(ctx context.Context) ([]string, error) {
	p.mu.Lock()
	admin := p.admin
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/check", nil)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("server: check: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("server: check: %s", resp.Status), xrpc.Drain(resp))
	}
	var broken []string
	err = errors.Join(json.NewDecoder(resp.Body).Decode(&broken), resp.Body.Close())
	if err == nil && broken == nil {
		err = errors.New("null is no list")
	}
	if err != nil {
		return nil, fmt.Errorf("server: check: %w", err)
	}
	return broken, nil
}

// checkDatabase reports what the server's own checker finds. It does nothing for a server that is
// not ours.
func (w *World) checkDatabase(ctx context.Context) {
	if w.Server == nil {
		return
	}
	broken, err := w.Server.CheckDatabase(ctx)
	if err != nil {
		w.Broken("%v", err)
	}
	for _, text := range broken {
		w.Broken("in the database: %s", text)
	}
}

// Operate calls a method of the operator's that changes something, such as "convo/delete".
func (p *Proc) Operate(ctx context.Context, method string, params map[string]string) error {
	body := maps.Clone(params)
	body["operator"], body["reason"] = "clientsim", "the scenario is over"
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("server: %s: %w", method, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.AdminURL()+"/admin/"+method, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("server: %s: %w", method, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("server: %s: %w", method, err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.Join(xrpc.ReadError(syntax.NSID(method), resp, nil), xrpc.Drain(resp))
	}
	return xrpc.Drain(resp)
}
