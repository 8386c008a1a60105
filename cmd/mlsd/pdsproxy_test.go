package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/cmd/mlsd-dev/devserver"
	"mlsd/features/attachments"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// A real PDS passes requests on to mlsd, as docs/operating/PROXIES.md says: with these headers and
// no others, with these headers of the answer, and with the name and message of an error.
func TestThroughAPDS(t *testing.T) {
	folder := os.Getenv(pdsFolder)
	if folder == "" {
		t.Skip("SKIPPED: " + pdsFolder + " is not set; cmd/mlsd/checkpds.sh runs this test with a real PDS")
	}
	plc := httptest.NewServer(devserver.NewDirectory(slog.Default()))
	t.Cleanup(plc.Close)
	between, requests := newRecorder(t)
	did := "did:web:localhost%3A" + between.port
	s := boot(t, nil, "--database-url", pgtest.URL(t), "--service-did", did, "--public-url", between.url, "--plc-url",
		plc.URL,
		"--attachments", t.TempDir())
	between.lead(t, s.public)
	alice := newPDS(t, folder, plc.URL).account("alice.test")

	group := strings.Repeat("ab", 16)
	in := &mlsapi.CreateConvoInput{GroupID: group, CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey()}
	for _, replayed := range []bool{false, true} { // the answer of the second one has X-Idempotency-Replay
		status, header, body := alice.through(did, http.MethodPost, mlsapi.NSIDCreateConvo, encode(in))
		if status != http.StatusOK {
			t.Fatalf("createConvo through the PDS: %d %s", status, body)
		}
		r := <-requests
		if got := r.answer.Get("X-Idempotency-Replay") == "true"; got != replayed ||
			header.Get("X-Idempotency-Replay") != "" || header.Get("RateLimit-Limit") != "" {
			t.Errorf("mlsd answers with %v, the PDS with %v", r.answer, header)
		}
		wantPassedOn(t, r)
	}
	in.CipherSuite = "none"
	status, header, body := alice.through(did, http.MethodPost, mlsapi.NSIDCreateConvo, encode(in))
	var refusal map[string]string
	if err := json.Unmarshal(body, &refusal); err != nil || status/100 != 4 || refusal["error"] == "" ||
		len(refusal) != 2 {
		t.Errorf("an error through the PDS is %d %s %v, %v", status, body, header, err)
	}
	<-requests
	status, _, body = alice.through(did, http.MethodPost, mlsapi.NSIDGetSubscriptionTicket, nil)
	if ticket := read[mlsapi.GetSubscriptionTicketOutput](t, body); status != http.StatusOK ||
		!strings.HasPrefix(ticket.URL, "ws://localhost:"+between.port+"/") {
		t.Errorf("a ticket through the PDS: %d %s", status, body)
	}
	<-requests

	in.GroupID, in.CipherSuite, in.IdempotencyKey = strings.Repeat("cd", 16), mlstest.Suite.String(), newKey()
	status, _, body = alice.through(did, http.MethodPost, mlsapi.NSIDCreateConvo, encode(in))
	if status != http.StatusOK {
		t.Fatalf("createConvo through the PDS: %d %s", status, body)
	}
	<-requests
	attachmentThroughAPDS(t, alice, did, read[mlsapi.CreateConvoOutput](t, body).ID, requests)
}

// An attachment goes up and down through the PDS: each part as it is, and answers of up to 10 MiB,
// as docs/clients/ATTACHMENTS.md says.
func attachmentThroughAPDS(t *testing.T, alice *pdsAccount, did, convo string, requests <-chan recorded) {
	t.Helper()
	const passes = 10 << 20 // bytes of an answer
	file := make([]byte, passes+attachments.PartSize+77)
	_, _ = rand.Read(file) // it never fails
	sum := sha256.Sum256(file)
	call := func(verb, path, contentType string, body []byte) (int, []byte) {
		t.Helper()
		status, _, answer := alice.throughAs(did, verb, path, contentType, body)
		<-requests
		return status, answer
	}
	must := func(verb, path, contentType string, body []byte) []byte {
		t.Helper()
		status, answer := call(verb, path, contentType, body)
		if status != http.StatusOK {
			t.Fatalf("%s through the PDS: %d %s", path, status, answer)
		}
		return answer
	}
	created := read[mlsapi.CreateAttachmentOutput](t,
		must(http.MethodPost, mlsapi.NSIDCreateAttachment, "application/json",
			encode(&mlsapi.CreateAttachmentInput{ConvoID: convo, Size: int64(len(file)), Sha256: hex.EncodeToString(sum[:])})))
	q := url.Values{"convoId": {convo}, "attachmentId": {created.AttachmentID}}
	number := 0
	for part := range slices.Chunk(file, int(created.PartSize)) {
		number++
		q.Set("part", strconv.Itoa(number))
		must(http.MethodPost, mlsapi.NSIDPutAttachmentPart+"?"+q.Encode(), "application/octet-stream", part)
	}
	q.Del("part")
	must(http.MethodPost, mlsapi.NSIDCompleteAttachment, "application/json",
		encode(&mlsapi.CompleteAttachmentInput{ConvoID: convo, AttachmentID: created.AttachmentID}))
	var got []byte
	for len(got) < len(file) {
		q.Set("offset", strconv.Itoa(len(got)))
		q.Set("length", strconv.Itoa(passes))
		more := must(http.MethodGet, mlsapi.NSIDGetAttachment+"?"+q.Encode(), "", nil)
		if len(more) == 0 {
			t.Fatalf("an empty answer behind %d bytes", len(got))
		}
		got = append(got, more...)
	}
	if !bytes.Equal(got, file) {
		t.Errorf("%d other bytes than the %d that were uploaded", len(got), len(file))
	}
	q.Set("offset", "0")
	q.Set("length", strconv.Itoa(passes+1))
	if status, _ := call(http.MethodGet, mlsapi.NSIDGetAttachment+"?"+q.Encode(), "", nil); status == http.StatusOK {
		t.Errorf("an answer of %d bytes passes too: docs/clients/ATTACHMENTS.md says less", passes+1)
	}
}

// wantPassedOn compares the headers of a request that the PDS has passed on with those on the page.
func wantPassedOn(t *testing.T, r recorded) {
	t.Helper()
	page := pages(t)["docs/operating/PROXIES.md"]
	item := regexp.MustCompile(`(?m)^- It passes on only [^.]*`).FindString(page)
	allowed := []string{"Authorization", "Connection", "Host"}
	for _, name := range regexp.MustCompile("`([A-Za-z-]+)`").FindAllStringSubmatch(item, -1) {
		allowed = append(allowed, name[1])
	}
	var others []string
	for name := range r.request {
		if !slices.Contains(allowed, name) {
			others = append(others, name)
		}
	}
	if diff := cmp.Diff([]string(nil), others); diff != "" || len(allowed) < 6 {
		t.Errorf("headers that the PDS has passed on and the page does not name: %s\n%v", diff, r.request)
	}
}

// through calls a method of mlsd through the account's PDS, with headers that a client may send.
func (a *pdsAccount) through(did, verb, nsid string, body []byte) (status int, header http.Header, answer []byte) {
	a.pds.t.Helper()
	return a.throughAs(did, verb, nsid, "application/json", body)
}

// throughAs is through for a body of any type. path is the method with its parameters. An answer
// that the PDS breaks off has status 0.
func (a *pdsAccount) throughAs(did, verb, path, contentType string, body []byte) (status int, header http.Header,
	answer []byte) {
	t := a.pds.t
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), verb, a.pds.url+"/xrpc/"+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": a.access, "Content-Type": contentType, "Atproto-Proxy": did + "#atproto_mls",
		"Accept-Language": "en",
		"Idempotency-Key": "a-key", "X-Request-Id": "an-id", "Last-Event-Id": "1", "X-Forwarded-For": "203.0.113.1",
		"Traceparent": "x", "X-Other": "x",
	} {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer, err = io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return 0, resp.Header, answer
	}
	return resp.StatusCode, resp.Header, answer
}

// recorded are the headers of a request as they come from the PDS, and those of mlsd's answer.
type recorded struct{ request, answer http.Header }

// recorder stands between a PDS and mlsd.
type recorder struct {
	url, port string
	server    *httptest.Server
	requests  chan recorded // of methods
}

func newRecorder(t *testing.T) (*recorder, <-chan recorded) {
	t.Helper()
	r := &recorder{requests: make(chan recorded, 10)}
	r.server = httptest.NewUnstartedServer(nil)
	_, port, err := net.SplitHostPort(r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.url, r.port = "http://localhost:"+port, port
	t.Cleanup(r.server.Close)
	return r, r.requests
}

// lead makes it pass requests on to mlsd.
func (r *recorder) lead(t *testing.T, to string) {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) },
		ModifyResponse: func(a *http.Response) error {
			if strings.HasPrefix(a.Request.URL.Path, "/xrpc/") {
				r.requests <- recorded{a.Request.Context().Value(recordedKey{}).(http.Header), a.Header}
			}
			return nil
		},
	}
	r.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		proxy.ServeHTTP(w, in.WithContext(context.WithValue(in.Context(), recordedKey{}, in.Header.Clone())))
	})
	r.server.Start()
}

// recordedKey is the key in a request's context of its headers as they came.
type recordedKey struct{}
