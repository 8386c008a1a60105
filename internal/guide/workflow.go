package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// workflow is the part of a GitHub workflow that pages use.
type workflow struct {
	Name string         `yaml:"name"`
	On   any            `yaml:"on"`
	Jobs map[string]job `yaml:"jobs"`
}

type job struct {
	RunsOn string `yaml:"runs-on"`
	Steps  []step `yaml:"steps"`
}

type step struct {
	Name string            `yaml:"name"`
	Uses string            `yaml:"uses"`
	With map[string]string `yaml:"with"`
	If   string            `yaml:"if"`
	Run  string            `yaml:"run"`
}

// decode reads YAML, and refuses fields that the type does not have.
func decode(text string, into any) error {
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// workflow runs the steps of a workflow in the main terminal. It supports one action: a checkout
// into a path, which is this checkout. Steps with a condition are left out.
func (r *reader) workflow(ctx context.Context, text string) error {
	var w workflow
	if err := decode(text, &w); err != nil {
		return err
	}
	if w.On == nil || len(w.Jobs) != 1 {
		return errors.New("a workflow has triggers, and one job here")
	}
	for _, j := range w.Jobs {
		if j.RunsOn == "" {
			return errors.New("the job does not say where it runs")
		}
		for i, s := range j.Steps {
			if err := r.step(ctx, s); err != nil {
				return fmt.Errorf("step %d: %w", i+1, err)
			}
		}
	}
	return nil
}

func (r *reader) step(ctx context.Context, s step) error {
	switch path := s.With["path"]; {
	case (s.Uses == "") == (s.Run == ""):
		return errors.New("a step either uses an action or runs a command")
	case s.If != "":
		return nil
	case strings.HasPrefix(s.Uses, "actions/checkout@") && path != "":
		return r.succeed(ctx, mainTerminal, fmt.Sprintf("ln -sfn %s %s\n", r.clone, path))
	case s.Uses != "":
		return nil
	}
	return r.succeed(ctx, mainTerminal, "bash -e <<'end-of-the-step'\n"+s.Run+"\nend-of-the-step\n")
}

// compose is the part of a compose file that pages use.
type compose struct {
	Services map[string]service `yaml:"services"`
}

type service struct {
	Image string `yaml:"image"`
	Build *struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile_inline"`
	} `yaml:"build"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	WorkingDir  string            `yaml:"working_dir"`
	Volumes     []string          `yaml:"volumes"`
	Healthcheck *struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
	DependsOn map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
}

// checkCompose checks the structure of a compose file: its fields, and that its services fit
// together.
func checkCompose(text string) error {
	var c compose
	if err := decode(text, &c); err != nil {
		return err
	}
	if len(c.Services) == 0 {
		return errors.New("there are no services")
	}
	for name, s := range c.Services {
		if (s.Image == "") == (s.Build == nil) {
			return fmt.Errorf("service %s has neither one image nor one build", name)
		}
		if s.Build != nil && !strings.HasPrefix(s.Build.Dockerfile, "FROM ") {
			return fmt.Errorf("the Dockerfile of %s does not begin with FROM", name)
		}
		for on, how := range s.DependsOn {
			other, ok := c.Services[on]
			if !ok || how.Condition == "service_healthy" && other.Healthcheck == nil {
				return fmt.Errorf("service %s depends on %s, which is not there or has no health check", name, on)
			}
		}
	}
	return nil
}
