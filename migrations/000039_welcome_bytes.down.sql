DROP INDEX welcomes_confirmed;
DROP INDEX welcomes_live_of_epoch;
DROP INDEX welcome_bodies_age;
