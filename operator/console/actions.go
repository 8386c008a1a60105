package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/operator"
)

// actionsPage is what the page Actions shows.
type actionsPage struct {
	Methods []operator.Method
	Actions []operator.Action
	Next    string // query for the next rows; "" if there are none
}

// actions shows the forms of the admin methods, and what operators have done.
func (c *Console) actions(ctx context.Context, r *Request) (any, error) {
	before, _ := strconv.ParseInt(r.Query.Get("before"), 10, 64) // 0 means from the newest
	p := actionsPage{Methods: slices.DeleteFunc(operator.Methods(), func(m operator.Method) bool { return m.Command })}
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		p.Actions, err = operator.Actions(ctx, tx, "", before, pageRows)
		return err
	})
	p.Next = next(p.Actions, func(last operator.Action) string { return "?before=" + strconv.FormatInt(last.ID, 10) })
	return p, err
}

// order is a method with the parameters that a form has sent.
type order struct {
	operator.Method
	Fields []orderField
	Result []field // result of the call; nil before the call
}

// orderField is a parameter of an order.
type orderField struct {
	operator.Param
	Sent  string // as the form has sent it: a DID or a reference
	Value string // the value that Sent means
}

// confirmPage asks before a method changes something, or returns a file about an account.
// resultPage shows the answer of a method.
var (
	confirmPage = page{Path: "/actions/confirm", Title: "Confirm", name: "confirm"}
	resultPage  = page{Path: "/actions/call", Title: "Result", name: "result"}
)

// confirm shows what an order would do, and asks for the operator and the reason.
func (c *Console) confirm(w http.ResponseWriter, r *http.Request) {
	req := c.request(r)
	o, err := readOrder(w, r, req)
	c.show(w, r, view{Request: req, Page: confirmPage, Data: o}, err)
}

// call executes an order, and shows the result.
func (c *Console) call(w http.ResponseWriter, r *http.Request) {
	req := c.request(r)
	answer := func(o order, err error) { c.show(w, r, view{Request: req, Page: resultPage, Data: o}, err) }
	o, err := readOrder(w, r, req)
	if err != nil {
		answer(o, err)
		return
	}
	operator, reason := r.PostFormValue("operator"), r.PostFormValue("reason")
	call, err := o.newCall(operator, reason)
	if err != nil {
		answer(o, err)
		return
	}
	if o.Archive {
		w.Header().Set("Content-Disposition", `attachment; filename="account.jsonl"`)
	}
	c.Operator.Answer(w, r, o.Method, call, func(out any, err error) {
		w.Header().Del("Content-Disposition") // the page shows an error, not a file
		if err == nil {
			o.Result, err = fieldsOf(out)
		}
		answer(o, err)
	})
}

// newCall returns the call of an order.
func (o order) newCall(operator, reason string) (operator.Call, error) {
	given := map[string]string{}
	for _, f := range o.Fields {
		given[f.Name] = f.Value
	}
	if o.Write {
		given["operator"], given["reason"] = operator, reason
	}
	return o.NewCall(given)
}

// readOrder reads the form of a method. It returns an error if there is no such method, or if the
// caller may not call it.
func readOrder(w http.ResponseWriter, r *http.Request, req *Request) (o order, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	name := r.PostFormValue("method")
	methods := operator.Methods()
	at := slices.IndexFunc(methods, func(m operator.Method) bool { return m.Name() == name && !m.Command })
	if at < 0 {
		return o, operator.BadRequest("there is no such method")
	}
	o.Method = methods[at]
	if o.Write && !req.Write {
		return o, &operator.Error{Status: http.StatusForbidden, Name: "ReadOnly",
			Message: "your token is for reading only: log in with the other one to change something"}
	}
	for _, p := range o.Params {
		f := orderField{Param: p, Sent: strings.TrimSpace(r.PostFormValue("param-" + p.Name))}
		f.Value = f.Sent
		if did, err := req.readDID(f.Sent); p.Name == "did" && err == nil {
			f.Value = did.String()
		}
		o.Fields = append(o.Fields, f)
	}
	return o, nil
}

// field is one field of a result.
type field struct{ Name, Value string }

// fieldsOf writes a result as a list of fields, as mlsd admin does.
func fieldsOf(out any) ([]field, error) {
	text, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	var all []field
	err = operator.Fields(text, func(name, value string) { all = append(all, field{name, value}) })
	return all, err
}
