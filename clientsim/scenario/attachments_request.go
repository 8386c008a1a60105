package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// refused is an answer that is no success.
type refused struct {
	status              int
	Name                string `json:"error"`
	Message             string `json:"message"`
	ProcessingStartedAt string `json:"processingStartedAt"`
	retry               bool
}

func (r *refused) Error() string { return fmt.Sprintf("%d %s: %s", r.status, r.Name, r.Message) }

// once sends one request to a node. Its answer can be lost.
func (u *uploads) once(ctx context.Context, node int, who *xrpc.Account, nsid string, q url.Values, body []byte, header map[string]string) ([]byte, error) {
	token, err := who.Token(u.w.Net.Audience, syntax.NSID(nsid))
	if err != nil {
		return nil, err
	}
	verb := http.MethodGet
	var in io.Reader
	if body != nil {
		verb, in = http.MethodPost, bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, verb, u.f.Nodes[node].URL()+"/xrpc/"+nsid+"?"+q.Encode(), in)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := u.http.Do(req)
	if err != nil {
		return nil, &refused{Message: err.Error(), retry: true}
	}
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, &refused{Message: err.Error(), retry: true}
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return data, nil
	}
	r := &refused{status: resp.StatusCode}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	if r.Name == mlsapi.ErrRequestInProgress && r.ProcessingStartedAt != "" {
		u.processing.Add(1)
	}
	r.retry = r.status >= http.StatusInternalServerError || r.status == http.StatusTooManyRequests || r.Name == mlsapi.ErrRequestInProgress
	return nil, r
}

// do repeats a request, to the other node after each failure. One in eight is sent twice, and of one in
// eight the answer does not count, as if it were lost.
func (u *uploads) do(ctx context.Context, rng *rand.Rand, who *xrpc.Account, nsid string, q url.Values, body []byte, header map[string]string) ([]byte, error) {
	node, wait := rng.IntN(len(u.f.Nodes)), 20*time.Millisecond
	for {
		if rng.IntN(8) == 0 {
			go func(node int) { _, _ = u.once(ctx, node, who, nsid, q, body, header) }(rng.IntN(len(u.f.Nodes)))
		}
		data, err := u.once(ctx, node, who, nsid, q, body, header)
		var r *refused
		lost := err == nil && rng.IntN(8) == 0
		switch {
		case err == nil && !lost:
			return data, nil
		case err != nil && (!errors.As(err, &r) || !r.retry):
			return nil, err
		case ctx.Err() != nil:
			return nil, errors.Join(err, ctx.Err())
		}
		u.retried.Add(1)
		xrpc.Sleep(ctx, wait)
		wait, node = min(2*wait, time.Second), (node+1)%len(u.f.Nodes)
	}
}

var (
	asJSON  = map[string]string{"Content-Type": "application/json"}
	asBytes = map[string]string{"Content-Type": "application/octet-stream"}
)
