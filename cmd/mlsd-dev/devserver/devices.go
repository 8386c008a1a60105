package devserver

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/cmd/mlsd-dev/repository"
)

// firstPackages is how many one-time KeyPackages a new device publishes, besides one of last
// resort.
const firstPackages = 2

// maxDevices is how many devices there may be. Each has its MLS state in memory.
const maxDevices = 1000

// suites are the cipher suites that a device can have. The first one is the default.
var suites = []mlsclient.Suite{mlsclient.SuiteX25519, mlsclient.SuiteP256, mlsclient.SuiteChaCha20}

// device is a device of an account: a counterpart for an app under test. It calls the service by
// HTTP, as any client does, so that planned faults affect its requests too. It repeats requests
// that got no answer.
type device struct {
	id string

	mu    sync.Mutex // guards phone: one operation at a time
	phone *client.Phone
}

// devices is the registry of devices. It is safe for concurrent use.
type devices struct {
	net *xrpc.Client

	mu    sync.Mutex         // guards the fields below
	last  int                // number of the newest id that add has chosen
	all   map[string]*device // by id
	order []string           // ids, the oldest device first
}

func newDevices(url string, service syntax.DID) *devices {
	return &devices{all: map[string]*device{},
		net: xrpc.NewClient(url, service.String(), &http.Transport{}, &xrpc.Stats{})}
}

func (d *devices) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.order = 0, nil
	clear(d.all)
}

func (d *devices) find(id string) (*device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, ok := d.all[id]
	if !ok {
		return nil, &refusal{http.StatusNotFound, "DeviceNotFound",
			fmt.Sprintf("no device %q: POST /dev/devices makes one", id)}
	}
	return dev, nil
}

func (d *devices) list() (all []*device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range d.order {
		all = append(all, d.all[id])
	}
	return all
}

// add registers a device. If the device has no id, add chooses one.
func (d *devices) add(dev *device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == maxDevices {
		return badRequest("there are %d devices: POST /dev/reset forgets them", maxDevices)
	}
	for dev.id == "" {
		d.last++
		if id := "d" + strconv.Itoa(d.last); d.all[id] == nil {
			dev.id = id
		}
	}
	if d.all[dev.id] != nil {
		return &refusal{http.StatusConflict, "DeviceExists", fmt.Sprintf("there is a device %q", dev.id)}
	}
	d.all[dev.id] = dev
	d.order = append(d.order, dev.id)
	return nil
}

// remove undoes add, for a device that could not publish KeyPackages.
func (d *devices) remove(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, id)
	d.order = slices.DeleteFunc(d.order, func(other string) bool { return other == id })
}

// NewDevice is the body of POST /dev/devices.
type NewDevice struct {
	DID syntax.DID `json:"did"`
	// ID is the device's name in paths: 1 to 64 letters, digits, ".", "_" and "-". If it is empty,
	// the device gets an id.
	ID string `json:"id"`
	// CipherSuite is the suite of its KeyPackages, and of the groups that it creates.
	CipherSuite string `json:"cipherSuite"`
}

// Device is the answer of POST /dev/devices.
type Device struct {
	ID          string     `json:"id"`
	DID         syntax.DID `json:"did"`
	DeviceID    string     `json:"deviceId"` // SHA-256 of its signature key, as the service names it
	CipherSuite string     `json:"cipherSuite"`
}

// Devices is the answer of GET /dev/devices.
type Devices struct {
	Devices []Device `json:"devices"`
}

func (d *device) show() Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := sha256.Sum256(d.phone.Device.SignatureKey())
	return Device{ID: d.id, DID: d.phone.Account.DID, DeviceID: hex.EncodeToString(key[:]),
		CipherSuite: d.phone.Suite.Name()}
}

// validID also matches the empty id, for which add chooses another.
var validID = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

// makeDevice makes a device that others can add: its account's repository lists it, and it has
// published KeyPackages.
func (s *Server) makeDevice(r *http.Request) any {
	in := read[NewDevice](r)
	if !validID.MatchString(in.ID) {
		Check(badRequest("id must have 1 to 64 letters, digits, dots, underscores and hyphens"))
	}
	owner, suite := Must(s.accounts.find(in.DID)), suiteOf(in.CipherSuite)
	phone := Must(client.NewPhone(owner.handle.String(), owner.Account, suite, s.devices.net, nil))
	phone.HasSiblings = true // the app under test can be another device of the account
	dev := &device{id: in.ID, phone: phone}
	Check(s.devices.add(dev))
	listed := deviceCollection + "/" + keyOfDevice(phone.Device.SignatureKey())
	list := func(now *repository.State) (*repository.State, error) { return now.Put(listed, recordOf(phone)) }
	unlist := func(now *repository.State) (*repository.State, error) { return now.Delete(listed) }
	Must(s.accounts.write(in.DID, list))
	if err := phone.PublishMany(context.WithoutCancel(r.Context()), firstPackages, true); err != nil {
		s.devices.remove(dev.id)
		Must(s.accounts.write(in.DID, unlist))
		Check(refusalOf(err))
	}
	return dev.show()
}

// recordOf returns the record by which an account lists a device.
func recordOf(phone *client.Phone) map[string]any {
	return map[string]any{
		"$type": deviceCollection, "signatureKey": atdata.Bytes(phone.Device.SignatureKey()),
		"cipherSuite": phone.Suite.Name(), "createdAt": syntax.DatetimeNow().String(),
	}
}

// keyOfDevice returns the key of that record, as the lexicon derives it from the signature key.
func keyOfDevice(signatureKey []byte) string {
	sum := sha256.Sum256(signatureKey)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}

func suiteOf(name string) mlsclient.Suite {
	if name == "" {
		return suites[0]
	}
	i := slices.IndexFunc(suites, func(s mlsclient.Suite) bool { return s.Name() == name })
	if i < 0 {
		var names []string
		for _, s := range suites {
			names = append(names, s.Name())
		}
		Check(badRequest("cipherSuite must be one of %s", strings.Join(names, ", ")))
	}
	return suites[i]
}

func (s *Server) listDevices(*http.Request) any {
	shown := Devices{Devices: []Device{}}
	for _, dev := range s.devices.list() {
		shown.Devices = append(shown.Devices, dev.show())
	}
	return shown
}
