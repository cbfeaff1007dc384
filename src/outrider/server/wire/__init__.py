"""What goes over the wire: the schemas of requests and answers.  Nothing else in Outrider knows them."""
