"""Guessing what is read next, or being told.

* `frontier`: progress through an order, whatever it is an order of;
* `streams`: sequential readers, found per region of a file rather than per handle;
* `siblings`: files of a directory that are opened in the order of their names;
* `tails`: formats that keep their index at the end;
* `plan`: a list of what will be read;
* `prefetcher`: turns all that into fetches.
"""
