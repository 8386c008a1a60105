// Package repository holds an account's repository in memory: its records, and the commit by which
// the account signs them. A proof shows one record, as https://atproto.com/specs/repository says.
// There is no history: a PDS for tests answers questions about the present state only.
package repository

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/repo/mst"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/ipfs/go-cid"

	. "mlsd/clientsim/steps"
)

// State is a repository after a commit. It never changes: a write returns the next state. It is
// safe for concurrent use.
type State struct {
	did     syntax.DID
	key     atcrypto.PrivateKey
	clock   *syntax.TIDClock // of all states of the repository
	records map[string]block // by path
	tree    *mst.Tree
	commit  block
	rev     string
}

// block is a block of a repository, in DAG-CBOR.
type block struct {
	cid  cid.Cid
	data []byte
}

// Record is a record of a repository.
type Record struct {
	Path  string // collection/key
	CID   cid.Cid
	Value map[string]any
}

// New returns the first state of an account's repository: it has no records.
func New(did syntax.DID, key atcrypto.PrivateKey) (*State, error) {
	first := &State{did: did, key: key, clock: syntax.NewTIDClock(0)}
	return first.next(map[string]block{})
}

// next commits records. Nobody changes the map afterwards.
func (s *State) next(records map[string]block) (_ *State, err error) {
	defer CatchIn(&err, "commit the repository of %s", s.did)
	values := map[string]cid.Cid{}
	for path, record := range records {
		values[path] = record.cid
	}
	next := *s
	next.records, next.tree = records, Must(mst.LoadTreeFromMap(values))
	r := repo.Repo{DID: s.did, Clock: s.clock, MST: *next.tree}
	commit := Must(r.Commit())
	Check(commit.Sign(s.key))
	var b bytes.Buffer
	Check(commit.MarshalCBOR(&b))
	next.rev, next.commit = commit.Rev, Must(newBlock(commit.Data, b.Bytes()))
	return &next, nil
}

// newBlock names a block by its hash, in the same form as another CID.
func newBlock(like cid.Cid, data []byte) (block, error) {
	id, err := like.Prefix().Sum(data)
	return block{id, data}, err
}

// Put returns the state in which the record at path has this value. The value must be data of the
// AT Protocol, as package atdata parses it.
func (s *State) Put(path string, value map[string]any) (_ *State, err error) {
	defer CatchIn(&err, "record %s", path)
	record := Must(newBlock(s.commit.cid, Must(atdata.MarshalCBOR(value))))
	records := maps.Clone(s.records)
	records[path] = record
	return s.next(records)
}

// Delete returns the state without the record at path.
func (s *State) Delete(path string) (*State, error) {
	records := maps.Clone(s.records)
	delete(records, path)
	return s.next(records)
}

// SignedBy returns the state with the same records, signed by another key.
func (s *State) SignedBy(key atcrypto.PrivateKey) (*State, error) {
	other := *s
	other.key = key
	return other.next(s.records)
}

// Len is the number of records.
func (s *State) Len() int { return len(s.records) }

// Rev is the revision of the commit. Later states have greater revisions.
func (s *State) Rev() string { return s.rev }

// CommitCID names the commit.
func (s *State) CommitCID() cid.Cid { return s.commit.cid }

// Has reports whether there is a record at path.
func (s *State) Has(path string) bool {
	_, ok := s.records[path]
	return ok
}

// Record returns the record at path, which must exist.
func (s *State) Record(path string) (Record, error) {
	record := s.records[path]
	value, err := atdata.UnmarshalCBOR(record.data)
	return Record{path, record.cid, value}, err
}

// Records returns the records of a collection, in the order of their keys.
func (s *State) Records(collection string) (_ []Record, err error) {
	defer CatchIn(&err, "records of %s", s.did)
	all := []Record{}
	for _, path := range slices.Sorted(maps.Keys(s.records)) {
		if strings.HasPrefix(path, collection+"/") {
			all = append(all, Must(s.Record(path)))
		}
	}
	return all, nil
}
