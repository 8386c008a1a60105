package testbed

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Bucket is a small S3 service on this machine, with as much of the protocol as mlsd uses, and with
// faults. It checks no signatures: features/attachments/s3store/check.sh tests mlsd with a real
// service.
type Bucket struct {
	site *xrpc.Site
	// Struck is how often a fault has struck.
	Struck atomic.Int64

	dir    string
	mu     sync.Mutex // guards the fields below
	rng    *rand.Rand
	chance float64 // chance of a fault, for each request
}

// BucketName is the name of the bucket.
const BucketName = "attachments"

// NewBucket starts a bucket. Its faults follow from the seed.
func NewBucket(seed uint64) (_ *Bucket, err error) {
	defer Catch(&err)
	dir := Must(os.MkdirTemp("", "clientsim-bucket-"))
	b := &Bucket{dir: dir, rng: rand.New(rand.NewPCG(seed, 1))}
	if b.site, err = xrpc.Serve("127.0.0.1:0", http.HandlerFunc(b.serve)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

// Close stops the bucket and deletes its objects.
func (b *Bucket) Close() error {
	return errors.Join(b.site.Close(), os.RemoveAll(b.dir))
}

// Fail makes each request fail with this chance. A failure is a status 500, an answer that is lost,
// a connection that is cut in the middle, or a delay of a second.
func (b *Bucket) Fail(chance float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chance = chance
}

const bucketTemporary = ".put-"

// bucketFault is what happens to one request.
type bucketFault int

const (
	bucketFine bucketFault = iota
	bucketError
	bucketLost
	bucketCut
	bucketSlow
	bucketFaults
)

func (b *Bucket) fault() (fault bucketFault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rng.Float64() < b.chance {
		b.Struck.Add(1)
		fault = 1 + bucketFault(b.rng.IntN(int(bucketFaults)-1))
	}
	return fault
}

func (b *Bucket) serve(w http.ResponseWriter, r *http.Request) {
	fault := b.fault()
	name, ok := strings.CutPrefix(r.URL.Path, "/"+BucketName)
	if !ok || strings.Contains(name, "..") {
		http.Error(w, "no such bucket", http.StatusNotFound)
		return
	}
	path := filepath.Join(b.dir, filepath.FromSlash(name))
	switch fault {
	case bucketError:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `<Error><Code>InternalError</Code><Message>planned</Message></Error>`)
		return
	case bucketCut:
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		panic(http.ErrAbortHandler)
	case bucketSlow:
		xrpc.Sleep(r.Context(), time.Second)
	}
	if fault == bucketLost {
		defer panic(http.ErrAbortHandler)
		w = lostAnswer{http.Header{}}
	}
	switch r.Method {
	case http.MethodPut:
		b.put(w, r, path)
	case http.MethodGet:
		if r.URL.Query().Has("list-type") {
			b.list(w, r)
			return
		}
		b.get(w, r, path)
	case http.MethodDelete:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// lostAnswer is an answer that nobody gets.
type lostAnswer struct{ header http.Header }

func (l lostAnswer) Header() http.Header         { return l.header }
func (l lostAnswer) Write(p []byte) (int, error) { return len(p), nil }
func (l lostAnswer) WriteHeader(int)             {}

// put stores an object, whole or not at all.
func (b *Bucket) put(w http.ResponseWriter, r *http.Request, path string) {
	body, length := io.Reader(r.Body), r.ContentLength
	if text := r.Header.Get("X-Amz-Decoded-Content-Length"); text != "" {
		body = httputil.NewChunkedReader(r.Body) // aws-chunked is the same encoding; signatures are extensions
		length, _ = strconv.ParseInt(text, 10, 64)
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp(filepath.Dir(path), bucketTemporary)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	sum := md5.New()
	n, err := io.Copy(io.MultiWriter(f, sum), body)
	if err = errors.Join(err, f.Close()); err == nil && n != length {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Etag", `"`+hex.EncodeToString(sum.Sum(nil))+`"`)
	w.WriteHeader(http.StatusOK)
}

func (b *Bucket) get(w http.ResponseWriter, r *http.Request, path string) {
	f, err := os.Open(path)
	if err != nil {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `<Error><Code>NoSuchKey</Code></Error>`)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", `"x"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// list lists objects, as ListObjectsV2 does.
func (b *Bucket) list(w http.ResponseWriter, r *http.Request) {
	type content struct {
		Key          string
		LastModified string
		Size         int64
	}
	out := struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		Name        string
		IsTruncated bool
		Contents    []content
	}{Name: BucketName}
	q := r.URL.Query()
	most, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil {
		most = 1000
	}
	err = filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(d.Name(), bucketTemporary) {
			return err
		}
		name, err := filepath.Rel(b.dir, path)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(name)
		info, err := d.Info()
		if err == nil && strings.HasPrefix(key, q.Get("prefix")) && key > q.Get("start-after") {
			out.Contents = append(out.Contents, content{key, info.ModTime().UTC().Format(time.RFC3339), info.Size()})
		}
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	slices.SortFunc(out.Contents, func(a, b content) int { return strings.Compare(a.Key, b.Key) })
	out.Contents = out.Contents[:min(most, len(out.Contents))]
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out) // the client notices a failure
}

// Settings returns the settings of a server that keeps its attachments in the bucket.
func (b *Bucket) Settings() map[string]string {
	return map[string]string{
		"MLSD_ATTACHMENTS":   b.site.URL + "/" + BucketName,
		"MLSD_S3_ACCESS_KEY": "simulator", "MLSD_S3_SECRET_KEY": "simulator",
	}
}
